"""Channels between pairs of ranks besides the messages of MPI.

`entry_points.txt` names them, as another package's metadata would: the rest of osucaffe imports
nothing of this folder.
"""
