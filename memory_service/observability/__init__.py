"""Logs and metrics of one process. Nothing of what is remembered ever reaches either."""
