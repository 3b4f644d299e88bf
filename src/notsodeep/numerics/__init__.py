"""Numerical tools that know nothing of networks."""
