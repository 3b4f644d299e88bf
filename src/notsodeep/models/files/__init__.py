"""Networks as safetensors files with a description in JSON."""
