"""The background verbs: each carries one job out, and stores its effect and the job's end in one transaction."""
