"""reconcile(key): read the caches, render and plan (pure), write, derive the status (pure), write it if it changed.

No step remembers anything outside the objects that could not be found again: a new process starts from nothing and
ends at the same state.
"""
