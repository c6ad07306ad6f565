"""The primitives on one GPU: CuPy for memory and streams, cuDNN, cuBLAS, own kernels."""

from .backend import Cuda

__all__ = ["Cuda"]
