"""Owns the commands about this machine: its devices, predictions, communication speed."""
