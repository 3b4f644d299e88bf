"""Exact infinite-width kernels: every pair's own equation, tile by tile."""
