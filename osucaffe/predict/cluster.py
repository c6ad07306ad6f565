"""Owns the description of clusters: TOML files that give each figure with its source.

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

[device.images_per_second]   # of one device, by the net's name: wins over tflops
"ResNet-50" = 364.8

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

[stragglers]
sigma = 0.02                 # of the logarithm of what an iteration computes, rank by rank

[sources]                    # where each figure is from
"links.network" = "..."
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import UserError, nearest
from ..files import read_bytes


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
    images_per_second: Mapping[str, float] = field(default_factory=dict)

    @property
    def adding(self) -> float:
        """Seconds to add a byte to another."""
        rate = self.add_gb_s or self.memory_gb_s / 3
        return 1e-9 / rate if rate else 0.0


@dataclass(frozen=True)
class Cluster:
    """See the module. sigma: of the stragglers."""

    name: str
    ranks_per_host: int
    device: Device
    node: Link
    network: Link
    sigma: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict)

    def host(self, rank: int) -> int:
        """The host on which a rank runs."""
        return rank // self.ranks_per_host


def read_cluster(path: str | Path) -> Cluster:
    """Read a cluster file. UserError, which names the field that is wrong or missing."""
    try:
        content = tomllib.loads(read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a cluster file (TOML): {error}") from None
    known = "name", "ranks_per_host", "device", "links", "stragglers", "sources"
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
        content.get("sources", {}),
    )


def _make(path: str | Path, name: str, content: Any, kind: type) -> Any:
    """A Link or a Device of one table."""
    if content is None:
        raise UserError(f"{path}: [{name}] is missing")
    _refuse_unknown(path, f"{name}.", content, [field.name for field in fields(kind)])
    for key, value in content.items():
        if isinstance(value, (int, float)) and (value < 0 or (key == "gb_s" and not value)):
            raise UserError(f"{path}: {name}.{key} must not be {value}")
    for key in ("stolen", "held"):
        if content.get(key, 0) >= 1:
            raise UserError(f"{path}: {name}.{key} is a share: it must be below 1")
    try:
        return kind(**content)
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
