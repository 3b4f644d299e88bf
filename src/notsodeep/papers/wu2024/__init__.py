"""The experiments of Wu et al. (NeurIPS 2024), W1 to W7."""
