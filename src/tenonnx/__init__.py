"""ONNX storage that fits exactly."""
