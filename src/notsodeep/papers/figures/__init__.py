"""Records of experiments as figures."""
