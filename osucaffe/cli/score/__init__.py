"""The commands that run a net forward: test, time, classify, upscale, extract_features."""
