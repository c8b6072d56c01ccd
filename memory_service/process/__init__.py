"""Whole processes: serving (with work beside it) and working alone. They start, drain on SIGTERM, and end."""
