"""Owns the data sets that databases are made of, and what can be said about one."""
