"""Owns the ways to compute convolutions: what a convolution is, and one provider a file."""
