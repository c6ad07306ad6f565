"""The random nets."""
