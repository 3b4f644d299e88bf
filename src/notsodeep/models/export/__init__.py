"""Networks as ONNX files and as source that needs torch alone."""
