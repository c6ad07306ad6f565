"""Owns NVIDIA's libraries as they are: what each offers, by ctypes. None of it knows of nets."""
