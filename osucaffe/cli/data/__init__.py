"""The commands that make, inspect and check databases."""
