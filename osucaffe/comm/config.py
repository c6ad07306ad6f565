"""The settings of communicators: their kinds, algorithms, and how long they wait."""

from __future__ import annotations

from dataclasses import dataclass

from ..options.flags import flag, like
from ..options.kinds import COUNT, SECONDS

KINDS = ("auto", "mpi", "nccl", "ipc", "nccl+ipc", "copy", "hierarchical")
"""auto takes, among the GPUs of a host, copy for arrays with fixed addresses, as a net's are
(but not with a given algorithm or table), and else nccl+ipc, or NCCL alone where they
cannot map one another's memory; ipc where ranks share a GPU."""
TUNING = flag("a tuning table that `osucaffe tune` wrote", "FILE", name="--tuning", ranks="file")
INTERFACE = flag(
    "what other channels than mpi listen on (default: the loopback's on one host, else "
    "the first that is up)",
    "NAME",
    ranks="own",
)


@dataclass(frozen=True)
class CommConfig:
    """What kind of communicator, which algorithms, and how long an operation may take.

    chunk: bytes of a message of an algorithm that cuts them (None: as the table says).
    """

    kind: str = flag(
        "communicator: mpi, hierarchical, or for GPUs nccl, ipc, nccl+ipc, copy (default: "
        "auto, which depends on where the ranks are)",
        "KIND",
        "auto",
        name="--comm",
    )
    algorithm: str = flag(
        "algorithm of collective operations (default: auto, as the tuning table says), or a "
        "module:function of your own",
        "NAME",
        "auto",
    )
    chunk: int | None = None
    table: str | None = like(TUNING)
    timeout: float = flag(
        "stop when a rank waits longer than S seconds for others (0: never; default: 300)",
        SECONDS,
        300.0,
        name="--comm_timeout",
    )
    group: int = flag(
        "treat each N ranks of a machine as a separate machine, to try out hierarchies",
        COUNT,
        0,
    )
    gradient_dtype: str = flag(
        "the data type of gradients on the wire",
        ("float32", "bfloat16", "float16"),
        "float32",
        name="--gradient_type",
    )
