"""Compressed gradients: what a rank sends of a bucket, and what it keeps for later."""
