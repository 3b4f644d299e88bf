"""Quadrature rules, Newton's method and tables of smooth functions."""
