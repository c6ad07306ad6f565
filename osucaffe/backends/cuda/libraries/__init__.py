"""Owns the bindings of NVIDIA's libraries, by ctypes. They know nothing of nets."""
