"""Kernels of infinitely wide networks: exact, and their high-dimensional equivalents."""
