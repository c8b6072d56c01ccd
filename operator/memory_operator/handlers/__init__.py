"""kopf's side: each watch event goes into the cache, and the keys that it concerns into our own queue; no logic."""
