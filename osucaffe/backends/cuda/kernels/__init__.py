"""The CUDA sources, which runtime/compile.py reads."""
