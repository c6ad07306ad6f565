"""The choice among candidates that compute the same: by timing, remembered on disk."""
