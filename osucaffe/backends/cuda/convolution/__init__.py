"""Convolutions: the description of one, and its providers, one per file."""
