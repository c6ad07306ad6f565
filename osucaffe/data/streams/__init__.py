"""Streams: which record comes when, and how it becomes part of a batch."""
