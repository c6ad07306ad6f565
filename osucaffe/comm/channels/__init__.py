"""Messages between pairs of ranks, by one of several ways."""

from ... import plugins

KINDS = ("mpi", *plugins.own().get(plugins.CHANNELS, ()))
"""MPI's own messages, and the channels of osucaffe/rpc. Other packages may have more."""
