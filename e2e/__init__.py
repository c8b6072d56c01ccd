"""Journeys against a real Kubernetes, one file each; `e2e.cluster` brings the Kubernetes up."""
