"""The choice of algorithms: measured on the current ranks, or read from a table."""
