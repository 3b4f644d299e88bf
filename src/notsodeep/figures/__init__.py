"""Figures of designs and of the explorer, and the style of all figures."""
