"""The passes over programs of recorded calls."""
