"""Snapshots: their files, what a resumed run needs, and which of them stay."""
