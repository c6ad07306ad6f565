"""The options of the commands about this machine and others."""

from __future__ import annotations

from dataclasses import dataclass

from ...options.flags import argument, field_of, flag, group, like
from ...options.kinds import MEGABYTES, SECONDS
from ..options import JSON, Device, Ranks


@dataclass(frozen=True, kw_only=True)
class DeviceQuery:
    """
      osucaffe device_query
      mpiexec -n 4 osucaffe device_query --mpi

    Rank 0 prints what all ranks found."""

    gpu: str = flag('which GPUs: "0,1"', "IDS", "all")
    mpi: bool = flag("show hosts, ranks, links and the MPI library instead")
    json: bool = like(JSON)


@dataclass(frozen=True)
class TuneRanks(Ranks):
    """Those that are measured."""

    ranks: int | None = like(field_of(Ranks, "ranks"), "start N ranks on this machine")


@dataclass(frozen=True, kw_only=True)
class Tune:
    """
      osucaffe tune --ranks 4            four ranks on this machine
      mpiexec -n 16 osucaffe tune        the ranks of a job
      osucaffe tune --gpu all            NCCL and ipc among the GPUs of this machine
      osucaffe tune --ranks 4 --designs solver.prototxt
                                         which design trains this net the fastest here, on CPUs:
                                         all-reduce, ring, tree, sharded or servers

    Later runs use the table automatically. Entries for other numbers of ranks are kept."""

    ranks: Ranks = group(TuneRanks, "")
    gpu: str | None = flag('measure between GPUs: "0,1", or "all"', "IDS")
    designs: str | None = flag(
        "train the net of this solver with each design in turn, and compare them", "SOLVER"
    )
    seconds: float = flag("seconds of each turn", SECONDS, 2.0)
    out: str | None = flag(
        "the table to write (default: the user's own); with --designs, a picture to draw", "FILE"
    )
    max_mb: float = flag("the largest arrays to measure, in MB", MEGABYTES, 64.0)

    @property
    def starts(self) -> tuple[Ranks, Device]:
        """What `launch` starts."""
        return self.ranks, Device(gpu=self.gpu)


@dataclass(frozen=True, kw_only=True)
class Version:
    """
    osucaffe version --json     with those of Python and NumPy"""

    json: bool = like(JSON)


@dataclass(frozen=True, kw_only=True)
class Completion:
    """
    eval "$(osucaffe completion bash)"                in ~/.bashrc
    eval "$(osucaffe completion zsh)"                 in ~/.zshrc
    osucaffe completion fish > ~/.config/fish/completions/osucaffe.fish"""

    shell: str = argument("the shell to print a script for", ("bash", "zsh", "fish"))
