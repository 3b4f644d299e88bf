"""Exact kernels written to disc, tile by tile, by one process or by many."""
