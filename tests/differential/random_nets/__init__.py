"""Owns the random nets."""
