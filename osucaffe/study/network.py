"""The model of a cluster's links: how long the messages of a plan take.

A message takes the link's latency, and its bytes at the link's rate, with what a call costs
(`call_us`). Each port carries one message at a time in each direction, first come, first served:
ranks queue for shared ports. A message
begins when both sides have posted it; one that fits the buffers (`buffer_kb`) when its sender has,
which still waits for the receiver, except with a small one (`eager_kb`).
An idle port lets `burst_kb` through at once, as if it had begun with them earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .cluster import Cluster
from .messages import Wave, Waves

SLICES = 8
"""Messages to and from servers are cut into that many."""


@dataclass(frozen=True)
class _Ports:
    """The ports that the messages of a wave use, in one direction."""

    port: np.ndarray
    seconds: np.ndarray
    alone: bool
    """No port is used twice; else the following fields describe the messages sorted by port."""
    ports: np.ndarray
    first: np.ndarray
    last: np.ndarray
    group: np.ndarray

    @classmethod
    def of(cls, port: np.ndarray, seconds: np.ndarray) -> _Ports:
        order = np.argsort(port, kind="stable")
        ports = port[order]
        changes = ports[1:] != ports[:-1]
        first, last = np.append(True, changes), np.append(changes, True)
        return cls(port, seconds, bool(first.all()), ports, first, last, np.cumsum(first) - 1.0)

    def serve(self, free: np.ndarray, ready: np.ndarray, scale: float) -> np.ndarray:
        """When each message begins to use its port, in the order of readiness. `free`, by port, is
        updated."""
        if self.alone:
            begin: np.ndarray = np.maximum(ready, free[self.port])
            free[self.port] = begin + scale * self.seconds
            return begin
        order = np.lexsort((ready, self.port))
        durations, earliest = scale * self.seconds[order], ready[order]
        earliest[self.first] = np.maximum(earliest[self.first], free[self.ports[self.first]])
        # Within a port, begin[i] = max over j <= i of (earliest[j] + what j .. i - 1 take).
        before = np.cumsum(durations) - durations
        apart = self.group * (1.0 + earliest.max() - earliest.min() + before[-1] + durations[-1])
        sorted_begin = np.maximum.accumulate(earliest - before + apart) - apart + before
        free[self.ports[self.last]] = sorted_begin[self.last] + durations[self.last]
        begin = np.empty_like(sorted_begin)
        begin[order] = sorted_begin
        return begin


@dataclass(frozen=True)
class _Way:
    """What the messages of a wave use: ports out of and into hosts or devices (each numbered
    separately), seconds, which flow without the receiver, and which complete without it. ahead:
    seconds that an idle port saves."""

    out: _Ports
    into: _Ports
    latency: np.ndarray
    seconds: np.ndarray
    flows: np.ndarray
    eager: np.ndarray
    ahead: np.ndarray


class Network:
    """The links among the first `size` ranks of a cluster, and parameter servers that are ranked
    after them, on these hosts (with a plan of sliced messages); and when each port is free."""

    def __init__(self, cluster: Cluster, size: int, servers: Sequence[int] = ()) -> None:
        ranks = np.arange(size + len(servers))
        self._cluster, self._size, self._calls = cluster, len(ranks), 1 / SLICES if servers else 1
        self._hosts = np.append(ranks[:size] // cluster.ranks_per_host, servers).astype(int)
        index = np.append(ranks[:size] % cluster.ranks_per_host, np.arange(len(servers)))
        ports = min(cluster.network.ports, cluster.ranks_per_host)
        # Network ports are numbered after the ranks': a host's ranks are divided among its ports.
        port = index % cluster.ranks_per_host * ports // cluster.ranks_per_host
        self._network_port = self._size + self._hosts * ports + port
        self._node_port = self._hosts if cluster.node.shared else ranks
        count = int(self._network_port.max()) + 1
        self._out, self._in = np.full(count, -np.inf), np.full(count, -np.inf)
        self._ways: dict[int, tuple[Waves, list[_Way]]] = {}

    def run(
        self, plan: Waves, begin: np.ndarray, scale: float = 1.0, nap: float = 0.0
    ) -> np.ndarray:
        """When each rank has ended an operation that it came to at `begin`, in seconds. scale: of
        the messages' bytes. nap: the longest sleep of who waits for a step to end: the naps begin
        short and double, so each is about as long as the wait before it, and half of it is lost."""
        start, ended = begin.copy(), np.zeros(self._size)
        adding = self._cluster.device.adding * scale
        if id(plan) not in self._ways:
            self._ways[id(plan)] = plan, [self._way(wave) for wave in plan]
        for wave, way in zip(plan, self._ways[id(plan)][1], strict=True):
            here, there = start[wave.source], start[wave.target]
            ready = np.where(way.flows, here, np.maximum(here, there))
            left = way.out.serve(self._out, ready - way.ahead, scale)
            came = way.into.serve(self._in, left, scale)
            done = np.maximum(came + scale * way.seconds, ready) + way.latency
            done = np.maximum(done, there)
            gone = np.where(way.eager, np.maximum(left + scale * way.seconds, ready), done)
            np.maximum.at(ended, wave.target, done)
            np.maximum.at(ended, wave.source, gone)
            finished = wave.finished
            waited = np.minimum(ended[finished] - start[finished], nap)
            start[finished] = ended[finished] + waited / 2 + adding * wave.added
            ended[finished] = 0.0
        return start

    def _way(self, wave: Wave) -> _Way:
        node, network = self._cluster.node, self._cluster.network
        near = self._hosts[wave.source] == self._hosts[wave.target]
        rate = np.where(near, node.gb_s, network.gb_s) * 1e9
        calls = self._calls * np.where(near, node.call_us, network.call_us) / 1e6
        seconds = wave.nbytes / rate + calls
        outward = np.where(near, self._node_port[wave.source], self._network_port[wave.source])
        inward = np.where(near, self._node_port[wave.target], self._network_port[wave.target])
        # One medium carries a message once: no second port waits for it.
        arriving = np.where(near & node.shared, 0.0, seconds)
        eager = wave.nbytes <= np.where(near, node.eager_kb, network.eager_kb) * 1024
        flows = wave.nbytes <= np.where(near, node.buffer_kb, network.buffer_kb) * 1024
        return _Way(
            _Ports.of(outward, seconds),
            _Ports.of(inward, arriving),
            np.where(near, node.latency_us, network.latency_us) / 1e6,
            seconds,
            eager | flows,
            eager,
            np.where(near, node.burst_kb, network.burst_kb) * 1024 / rate,
        )
