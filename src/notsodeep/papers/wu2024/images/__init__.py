"""The images of W7, the networks trained on them, and their saliency maps."""
