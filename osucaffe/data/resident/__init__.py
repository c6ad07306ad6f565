"""The cache of records in the backend's memory: which, where, and shared among ranks."""
