"""Benchmarks: the nets of models/, side by side with other frameworks on the same machine."""
