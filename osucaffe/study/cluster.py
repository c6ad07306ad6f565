"""The description of clusters: TOML files that give each figure with its source.

name = "8 GPUs a host"
ranks_per_host = 8

[device]
tflops = 15.7                # of the precision used for training
memory_gb_s = 900            # for layers that only move memory
efficiency = 0.5             # of these, where nothing else is known (default 0.5)
add_gb_s = 300               # rate of adding two arrays (default memory_gb_s / 3)
stolen = 0.1                 # the fraction of its speed that computation loses to communication
nap_us = 1000                # the longest sleep between two polls for messages that overlap with
                             # computation (default 0; osucaffe's threads over MPI: 1000)
held = 0.1                   # the fraction of its speed that communication loses to computation
half_batch = 5               # a layer takes as long as its images and so many more (default 0): the
                             # batch of which a device makes half as many images per second as of a
                             # large one

[device.images_per_second]   # of one device, by the net's name: wins over tflops
"ResNet-50" = 364.8          # of large batches
"GoogleNet" = [75.8, 128]    # of batches of 128

[server]                     # what a parameter server adds and updates with (default: the device)
memory_gb_s = 60

[links.node]                 # between ranks of a host; [links.network] between hosts
latency_us = 5
gb_s = 50                    # in each direction
shared = false               # one medium for all ranks of the host, or a port for each

[links.network]
latency_us = 5
gb_s = 12.5
ports = 2                    # for each host, divided among its ranks (default 1)
eager_kb = 16                # messages up to this size need no posted receive (default 0)
buffer_kb = 4096             # nor do these, but their sends complete when the receive is posted
burst_kb = 64                # what an idle port lets through at once (default 0), as a token bucket
                             # does
call_us = 100                # each message keeps its ports for so long besides (default 0): the
                             # cost of a call

[reading]                    # records that readers give, one for each rank (default: any number)
records_per_second = 500     # of one reader
readers = 64                 # beyond so many, more give no more

[stragglers]
sigma = 0.02                 # of the logarithm of what an iteration computes, rank by rank

[sources]                    # where each figure is from
"links.network" = "..."
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError, nearest
from ..files import read_bytes
from ..parallel.buckets import ITEM

_RATES = "gb_s", "records_per_second"
_PASSES_OVER_UPDATE = 5
"""An update reads gradient, weight and history, and writes two of them."""


@dataclass(frozen=True)
class Link:
    """latency_us: microseconds of an empty message. gb_s: 10^9 bytes per second."""

    latency_us: float
    gb_s: float
    shared: bool = False
    ports: int = 1
    eager_kb: float = 0.0
    buffer_kb: float = 0.0
    burst_kb: float = 0.0
    call_us: float = 0.0


@dataclass(frozen=True)
class Device:
    """What one rank computes on."""

    tflops: float = 0.0
    memory_gb_s: float = 0.0
    efficiency: float = 0.5
    add_gb_s: float = 0.0
    stolen: float = 0.0
    held: float = 0.0
    nap_us: float = 0.0
    half_batch: float = 0.0
    images_per_second: Mapping[str, float | list[float]] = field(default_factory=dict)

    @property
    def adding(self) -> float:
        """Seconds to add a byte to another."""
        rate = self.add_gb_s or self.memory_gb_s / 3
        return 1e-9 / rate if rate else 0.0

    @property
    def updating(self) -> float:
        """Seconds to update a parameter."""
        return _PASSES_OVER_UPDATE * ITEM / self.memory_gb_s / 1e9 if self.memory_gb_s else 0.0

    def seconds(self, net: str, batch: int) -> float | None:
        """Of a batch by the images per second of a net; None where the file gives none."""
        rate = self.images_per_second.get(net)
        if rate is None:
            return None
        rate, of = rate if isinstance(rate, list) else (rate, 0)
        return (batch + self.half_batch) / rate * (of / (of + self.half_batch) if of else 1.0)

    def __post_init__(self) -> None:
        for net, rate in self.images_per_second.items():
            match rate:
                case float() | int() | [float() | int(), float() | int()] if np.min(rate) > 0:
                    continue
            raise UserError(
                f'device.images_per_second."{net}" must be a rate, or [a rate, its batch]'
            )


@dataclass(frozen=True)
class Reading:
    """Records per second of a reader; more readers than this add nothing."""

    records_per_second: float
    readers: float = math.inf

    def seconds(self, records: int, ranks: int) -> float:
        """To read so many for each rank."""
        return records * ranks / min(ranks, self.readers) / self.records_per_second


@dataclass(frozen=True)
class Cluster:
    """See the module. sigma: of the stragglers."""

    name: str
    ranks_per_host: int
    device: Device
    node: Link
    network: Link
    sigma: float = 0.0
    server: Device | None = None
    reading: Reading | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def host(self, rank: int) -> int:
        """The host on which a rank runs."""
        return rank // self.ranks_per_host

    def server_hosts(self, servers: str, workers: int) -> list[int]:
        """Where parameter servers run: "K", the ranks after the workers'; "K/host", K beside the
        workers of each host. UserError for anything else."""
        count, per_host, rest = servers.partition("/host")
        if not count.isdecimal() or not int(count) or rest:
            raise UserError(
                f"--servers {servers}: give K, or K/host for K alongside each host's ranks"
            )
        if per_host:
            return [host for host in range(self.host(workers - 1) + 1) for _ in range(int(count))]
        return [self.host(workers + server) for server in range(int(count))]


def read_cluster(path: str | Path, changes: Sequence[str] = ()) -> Cluster:
    """Read a cluster file, and put other values in place of its own ("links.node.gb_s=10").
    UserError, which names the field that is wrong or missing."""
    try:
        content = tomllib.loads(read_bytes(path).decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a cluster file (TOML): {error}") from None
    for change in changes:
        try:
            _merge(content, tomllib.loads(change))
        except tomllib.TOMLDecodeError:
            raise UserError(
                f"--set {change}: give a field of the cluster file and its value, such as "
                "links.network.gb_s=2.5"
            ) from None
    known = (
        "name",
        "ranks_per_host",
        "device",
        "server",
        "links",
        "reading",
        "stragglers",
        "sources",
    )
    _refuse_unknown(path, "", content, known)
    links = content.get("links", {})
    _refuse_unknown(path, "links.", links, ("node", "network"))
    for name in ("ranks_per_host", "device"):
        if name not in content:
            raise UserError(f"{path}: {name} is missing")
    if not isinstance(content["ranks_per_host"], int) or content["ranks_per_host"] < 1:
        raise UserError(f"{path}: ranks_per_host must be a number from 1 on")
    stragglers = content.get("stragglers", {})
    _refuse_unknown(path, "stragglers.", stragglers, ("sigma",))
    return Cluster(
        content.get("name", Path(path).stem),
        content["ranks_per_host"],
        _make(path, "device", content["device"], Device),
        _make(path, "links.node", links.get("node"), Link),
        _make(path, "links.network", links.get("network"), Link),
        float(stragglers.get("sigma", 0.0)),
        _make(path, "server", content["server"], Device) if "server" in content else None,
        _make(path, "reading", content["reading"], Reading) if "reading" in content else None,
        content.get("sources", {}),
    )


def _merge(content: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(content.setdefault(key, {}), dict):
            _merge(content[key], value)
        else:
            content[key] = value


def _make(path: str | Path, name: str, content: Any, kind: type) -> Any:
    """A Link or a Device of one table."""
    if content is None:
        raise UserError(f"{path}: [{name}] is missing")
    _refuse_unknown(path, f"{name}.", content, [field.name for field in fields(kind)])
    for key, value in content.items():
        if isinstance(value, (int, float)) and (value < 0 or (key in _RATES and not value)):
            raise UserError(f"{path}: {name}.{key} must not be {value}")
    for key in ("stolen", "held"):
        if content.get(key, 0) >= 1:
            raise UserError(f"{path}: {name}.{key} is a share: it must be below 1")
    try:
        return kind(**content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except TypeError as error:
        raise UserError(f"{path}: [{name}]: {str(error).partition('() ')[2]}") from None


def _refuse_unknown(path: str | Path, where: str, content: Any, known: Any) -> None:
    if not isinstance(content, dict):
        raise UserError(f"{path}: {where.rstrip('.')} must be a table, [{where.rstrip('.')}]")
    for key in content:
        if key not in known:
            near = nearest(key, known)
            hint = f" (did you mean {near}?)" if near else ""
            raise UserError(f"{path}: there is no {where}{key}{hint}: {', '.join(known)} are known")
