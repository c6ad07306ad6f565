"""Messages between pairs of ranks, by one of several ways."""

KINDS = ("mpi", "adaptive", "grpc")
"""MPI's own messages; sockets or memory, used as each message's size asks for; streams of gRPC."""
