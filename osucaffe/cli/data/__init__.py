"""Owns the commands that make, inspect and check databases."""
