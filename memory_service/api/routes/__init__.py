"""Routes, by noun. Each reads its arguments, calls one operation and answers; nothing else."""
