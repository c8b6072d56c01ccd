"""I/O: nobody else speaks to the API server, to a memory service or to a model endpoint."""
