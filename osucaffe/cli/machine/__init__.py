"""Owns the commands about this machine: what it has, what it could do, how fast it communicates."""
