"""Owns records that stay in the memory of the backend: which, where, and shared among ranks."""
