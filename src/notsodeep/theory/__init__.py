"""Networks as values, their scalars, and the statistics of the data that the theorems are written in."""
