"""Owns the commands that run programs written for Caffe."""
