"""Pure: what the status of an object says, given its spec, what was observed, and the time."""
