"""A small federation on Flower."""
