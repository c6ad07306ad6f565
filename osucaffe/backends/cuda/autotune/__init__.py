"""Owns the choice among several ways to compute the same: by timing them, remembered on disk."""
