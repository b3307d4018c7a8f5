"""Diffusion models of images: noise schedule, networks, training and sampling."""
