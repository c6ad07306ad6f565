"""Owns the choice among candidates that compute the same: by timing them, remembered on disk."""
