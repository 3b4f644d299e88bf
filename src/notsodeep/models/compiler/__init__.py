"""From a DEQ, or any module with a fixed point, to a network that answers without iterations, and what that keeps."""
