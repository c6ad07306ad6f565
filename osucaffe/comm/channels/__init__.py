"""Messages between pairs of ranks, by one of several ways."""

KINDS = ("mpi", "adaptive", "ucx", "grpc")
"""MPI's own messages; sockets, memory or UCX, used as each message's size asks for; UCX for all of
them; streams of gRPC."""
