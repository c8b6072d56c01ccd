"""Carries jobs out: claims under a lease, keeps the lease while it works, and turns failures into states."""
