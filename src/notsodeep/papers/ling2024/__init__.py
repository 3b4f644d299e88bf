"""The experiments of Ling et al. (ICML 2024), L1 to L7."""
