"""What crosses a process border: the HTTP bodies, the service's configuration file, bindings and health reports.

Only pydantic and the standard library may be imported here, so that the client and the operator stay light.
"""
