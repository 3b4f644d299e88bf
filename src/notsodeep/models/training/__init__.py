"""Training networks: the loop, its checkpoints, readouts, and comparisons at equal cost."""
