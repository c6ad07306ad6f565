"""Owns the passes over programs of recorded calls."""
