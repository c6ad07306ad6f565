"""The export of nets as ONNX models: every primitive that a forward pass calls, as nodes."""

from .model import OPSET, for_any_batch, to_onnx

__all__ = ["OPSET", "for_any_batch", "to_onnx"]
