"""Kernels as low rank plus diagonal: the theorems' equivalents, the sharp form, and fits that stream over the data."""
