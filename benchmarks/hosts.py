"""Hosts made of network namespaces, joined by links of a given speed, where ranks start.

Each host has a network and a name of its own; memory and processes are shared, so ranks on two
"hosts" must be kept from talking through shared memory (MPICH over libfabric's TCP does so).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from osucaffe.backends.cores import usable_cores

from .ranks import MPIEXEC, ROOT

AGENT = """#!/bin/bash
# Stands in for ssh: drops its options, takes the host, runs the command there.
while [[ "$1" == -* ]]; do shift; done
host="$1"; shift
exec ip netns exec "$host" unshare --uts bash -c "hostname $host; $*"
"""


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


def _tc(verb: str, device: str, rate: str, burst: str, *inside: str) -> None:
    words = ["tc", "qdisc", verb, "dev", device, "root", "tbf", "rate", rate, "burst", burst]
    subprocess.run([*inside, *words, "latency", "100ms"], check=True, capture_output=True)


class Hosts:
    """Hosts of names and addresses that depend on `number` (0 to 999), so that others may have
    theirs beside them. MPICH's mpiexec starts ranks on them."""

    def __init__(self, number: int, count: int, folder: Path) -> None:
        self.names = [f"oc{number}x{index}" for index in range(count)]
        self.bridge = f"oc{number}xbr"
        self._network = f"10.{213 + number // 250}.{number % 250}"
        self._agent = folder / "agent.sh"
        self._agent.write_text(AGENT)
        self._agent.chmod(0o755)

    def start(self, rate: str, burst: str) -> None:
        """Make them. rate: of each host's link, as `tc` writes it ("1gbit"); burst: what that lets
        through at once after a rest."""
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self._network}.254/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for index, name in enumerate(self.names):
            _ip("netns", "add", name)
            _ip("link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", f"{name}v", "master", self.bridge, "up")
            inside = ["-n", name]
            _ip(*inside, "addr", "add", f"{self.address(index)}/24", "dev", "eth0")
            _ip(*inside, "link", "set", "eth0", "up")
            _ip(*inside, "link", "set", "lo", "up")
            self._shape("add", name, rate, burst)

    def address(self, index: int) -> str:
        """A host's address."""
        return f"{self._network}.{index + 1}"

    def inside(self, index: int) -> list[str]:
        """The words before a command that is to run on a host."""
        return ["ip", "netns", "exec", self.names[index]]

    def set_link(self, index: int, up: bool) -> None:
        """Let a host's link carry all, or nothing."""
        _ip("link", "set", f"{self.names[index]}v", "up" if up else "down")

    def set_rate(self, index: int, rate: str, burst: str = "1mb") -> None:
        """Change the speed at which a host sends."""
        self._shape("change", self.names[index], rate, burst)

    def processes(self, index: int) -> list[int]:
        """The processes of a host."""
        words = ["ip", "netns", "pids", self.names[index]]
        told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        return [int(word) for word in told.split()]

    def shape_inward(self, rate: str, burst: str) -> None:
        """Let what comes to hosts be no faster than what leaves them."""
        for name in self.names:
            _tc("add", f"{name}v", rate, burst)

    def _shape(self, verb: str, name: str, rate: str, burst: str) -> None:
        _tc(verb, "eth0", rate, burst, "ip", "netns", "exec", name)

    def stop(self) -> None:
        """Remove them."""
        for name in self.names:
            _ip("link", "del", f"{name}v", check=False)  # at once: a namespace takes its time
            _ip("netns", "del", name, check=False)
        _ip("link", "del", self.bridge, check=False)

    def command(
        self, mpiexec: str, ranks: Sequence[int], program: Sequence[str]
    ) -> tuple[list[str], dict[str, str]]:
        """What starts a program as that many ranks on each host in turn, and around again, and its
        environment."""
        environment = os.environ | {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
        if sum(ranks) > usable_cores():  # which no host sees
            environment["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = "1"
        places = ",".join(
            f"{name}:{n}" for name, n in zip(itertools.cycle(self.names), ranks, strict=False)
        )
        line = [mpiexec, "-launcher", "ssh", "-launcher-exec", str(self._agent)]
        line += ["-iface", self.bridge, "-hosts", places, "-n", str(sum(ranks)), *program]
        return line, environment

    def mpiexec(
        self, ranks: int, *arguments: str, times: int = 1, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run `python ARGUMENTS` as that many ranks on each host, and that many times around."""
        assert MPIEXEC is not None
        program = [sys.executable, *arguments]
        line, environment = self.command(MPIEXEC, [ranks] * len(self.names) * times, program)
        return subprocess.run(
            line,
            env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@contextlib.contextmanager
def hosts(count: int, rate: str, folder: Path, burst: str = "1mb") -> Iterator[Hosts | None]:
    """So many hosts, or None where the machine does not permit them."""
    made = Hosts(os.getpid() % 1000, count, folder)
    try:
        made.start(rate, burst)
    except (OSError, subprocess.CalledProcessError):
        made.stop()
        yield None
        return
    try:
        yield made
    finally:
        made.stop()
