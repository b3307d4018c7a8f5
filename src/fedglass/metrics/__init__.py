"""Metrics of how much of an image came back: pure functions of reconstructions and originals, pixels in [0, 1]."""
