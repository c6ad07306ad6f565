"""Messages between pairs of ranks, by one of several ways."""

KINDS = ("mpi", "adaptive")
"""MPI's own messages; sockets, used as each message's size asks for."""
