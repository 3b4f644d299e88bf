"""The papers' experiments: one file each, from a config to records on disk."""
