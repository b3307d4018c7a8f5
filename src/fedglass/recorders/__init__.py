"""Recorders: what a running federation says, and how its clients train, written to a bundle without changing either."""
