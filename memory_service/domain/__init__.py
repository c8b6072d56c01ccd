"""Pure decisions: no I/O, no clock, no randomness, nothing asynchronous."""
