"""What the ranks of a training compare before anything else: version, options, files, data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import Message

from ... import __version__
from ...comm.job.job import Job, MpiJob
from ...data.databases.lmdb_database import LmdbDatabase
from ...errors import UserError
from ...options.flags import flags_of
from ...parallel import agreement
from ...parallel.agreement import describe_layers, describe_solver, digest
from ...proto import SolverParameter, read_net
from ...solvers.nets import testing_nets, training_net
from .options import Train

_SOURCES = ("source", "low_source", "mean_file", "meanfile", "label_map_file", "name_size_file")
"""Fields of layers that name files that must be the same on every host."""
_LONGEST = 1 << 26
"""Bytes of a file that are compared."""


def check_alike(options: Train, job: Job, param: SolverParameter) -> None:
    """UserError on every rank unless all were started in the same way; all call it together."""
    if not isinstance(job, MpiJob) or job.size == 1:
        return
    job.watchdog.timeout = options.comm.timeout

    agreement.check_alike(job, _describe(options, param))


def _describe(options: Train, param: SolverParameter) -> dict[str, str]:
    parts = {"version of osucaffe": __version__}
    for name, flag, value in flags_of(options):
        files = [value] if isinstance(value, str) else value or ()
        if flag.ranks == "file":
            parts[name] = ", ".join(map(_file, files)) or "none"
        elif flag.ranks == "name":
            parts[name] = Path(value).name if value else "none"
        elif flag.ranks == "same":
            parts[name] = flag.show(value)
    parts["kind of device (--gpu)"] = "CPU" if options.device.gpu is None else "GPU"
    parts |= describe_solver(param)
    nets = [("the net", training_net(param, options.solver, read_net).param)]
    tests = testing_nets(param, options.solver, read_net)
    nets += [(f"test net {number}", choice.param) for number, choice in enumerate(tests)]
    for where, net in nets:
        parts |= describe_layers(net, where)
        for source in _sources(net):
            parts[f"data in {source}"] = _source(Path(source))
    return parts


def _sources(message: Message) -> Iterator[str]:
    """What the fields of a message name."""
    for field, value in message.ListFields():
        if field.name in _SOURCES and isinstance(value, str):
            yield value
        elif field.message_type:
            for item in [value] if isinstance(value, Message) else value:
                yield from _sources(item)


def _source(path: Path) -> str:
    """Identifies data regardless of its path; nothing if it cannot be read, which its layer will
    report."""
    if not (path / "data.mdb").is_file():
        return _file(path)
    try:
        database = LmdbDatabase(path)
        [(key, value)] = database.read(0, 1)
    except UserError:
        return "nothing"
    return f"{len(database):,} records of which the first is {digest(bytes(key) + bytes(value))}"


def _file(path: str | Path) -> str:
    path = Path(path)
    if not path.is_file():
        return "nothing"
    try:
        with path.open("rb") as file:
            return f"{path.stat().st_size:,} bytes {digest(file.read(_LONGEST))}"
    except OSError:
        return "nothing"
