"""Exact kernels of convolutional networks."""
