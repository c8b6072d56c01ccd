"""One verb per module: read, decide (pure, in `domain`), write. No status codes, no SQL, no HTTP."""
