"""Who calls: turns the tokens of a request and the store's bindings into one frozen Caller.

`build.make_authenticator` gives the Authenticator of the configured mode; `http_rules` says which requests are refused
for their Host, Origin or content type before anybody is asked who they are.
"""
