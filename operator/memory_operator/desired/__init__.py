"""Pure: what should exist in the cluster, given typed specs. No I/O, no clock, no randomness."""
