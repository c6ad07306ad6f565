"""Owns the update of the parameters: rules, learning rates, loss scaling."""
