"""What the operations need from the outside: storage, models, tokens and time.

Records that never cross the wire (vectors, leases, hashes) live here beside the ports that speak of them.
A transaction is a plain function over a `Transaction`: it cannot await, so no model or network call can happen inside
one, the local backend can commit many of them together, and a lost connection is answered by running it again.
"""
