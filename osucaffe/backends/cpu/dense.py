"""Soon."""
