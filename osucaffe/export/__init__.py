"""Owns the export of nets as ONNX models: every primitive that a forward pass calls, as nodes."""

from .model import OPSET, to_onnx

__all__ = ["OPSET", "to_onnx"]
