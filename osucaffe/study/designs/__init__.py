"""Designs of training that options name: local steps, reproducible sums, split layers."""
