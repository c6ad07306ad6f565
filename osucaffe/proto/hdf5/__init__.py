"""Owns HDF5 files: read by ourselves, so that a damaged one cannot end the process."""
