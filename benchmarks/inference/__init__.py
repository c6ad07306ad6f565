"""Inference: nets and whole commands beside OpenCV, ONNX Runtime and PyTorch."""
