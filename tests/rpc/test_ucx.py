"""UCX: structures lie as C has them, and adaptive messages take it where it pays."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osucaffe.comm.job.topology import Location, Topology
from osucaffe.errors import UserError
from osucaffe.rpc import create, ucp, ucx

# As a C compiler lays out ucp/api/ucp.h of UCX 1.22 (x86-64, LP64).
LAYOUT: dict[type[ctypes.Structure], dict[str, int]] = {
    ucp.Params: {"features": 8, "tag_sender_mask": 40, "mt_workers_shared": 48, "name": 72},
    ucp.WorkerParams: {"thread_mode": 8, "cpu_mask": 16, "events": 144, "client_id": 192},
    ucp.EndpointParams: {"address": 8, "err_mode": 16, "err_callback": 24, "user_data": 40},
    ucp.RequestParam: {
        "request": 8, "callback": 16, "datatype": 24, "user_data": 32, "recv_info": 56, "memh": 64,
    },
    ucp.Piece: {"length": 8},
    ucp.ReceiveInfo: {"length": 8},
}  # fmt: skip


@pytest.mark.parametrize("structure", LAYOUT)
def test_structures_lie_as_in_c(structure: type[ctypes.Structure]) -> None:
    found = {name: getattr(structure, name).offset for name in LAYOUT[structure]}
    assert found == LAYOUT[structure]


class Recorded:
    """What would be a worker of UCX's."""

    def __init__(self, rank: int, ranks: Any, gather: Any, *, near: Any, settings: Any) -> None:
        self.ranks, self.near, self.settings = list(ranks), set(near), settings


ADAPTERS = {"TLS": "ib,sm"}
TCP = {"TLS": "tcp,sm", "NET_DEVICES": "lo"}


@pytest.mark.parametrize(
    ("kind", "hosts", "adapters", "ranks", "settings"),
    [
        ("adaptive", (0, 0, 2, 2), True, [2, 3], ADAPTERS),  # those of the other host
        ("adaptive", (0, 0, 2, 2), False, None, {}),  # sockets are as fast over TCP, and safe
        ("adaptive", (0, 0, 0, 0), True, None, {}),
        ("ucx", (0, 0, 2, 2), True, [1, 2, 3], ADAPTERS),
        ("ucx", (0, 0, 2, 2), False, [1, 2, 3], TCP),  # on no other interface
        ("ucx", (0, 0, 0, 0), False, [1, 2, 3], {"TLS": "sm"}),  # nothing listens
    ],
)
def test_who_is_reached_by_ucx(
    kind: str,
    hosts: tuple[int, ...],
    adapters: bool,
    ranks: list[int] | None,
    settings: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = [Location(rank, host, f"h{host}", 1) for rank, host in enumerate(hosts)]
    job: Any = SimpleNamespace(rank=0, size=4, gather=lambda value: [value] * 4)
    monkeypatch.setattr(ucx, "has_fabric", lambda: adapters)
    monkeypatch.setattr(ucx, "is_available", lambda: True)
    monkeypatch.setattr(ucx, "Ucx", Recorded)
    topology, everyone = Topology(places[0], tuple(places)), kind == "ucx"
    found: Any = create._find_fabric(job, topology, "lo", everyone=everyone)
    if ranks is None:
        assert found is None
        return
    assert (found.ranks, found.settings) == (ranks, settings)
    assert found.near == {rank for rank in (1, 2, 3) if hosts[rank] == 0}


def test_an_adapter_counts_if_its_link_is_up(tmp_path: Path) -> None:
    assert not ucx.has_fabric(tmp_path / "nowhere")
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("1: DOWN\n")
    assert not ucx.has_fabric(tmp_path)
    (port / "state").write_text("4: ACTIVE\n")
    assert ucx.has_fabric(tmp_path)


def test_without_a_library_the_message_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str, mode: int) -> None:
        raise OSError(f"{name}: cannot open")

    ucp.library.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(ctypes, "CDLL", nothing)
        with pytest.raises(UserError, match=r"there is no UCX here \(libucp.*Debian: libucx0"):
            ucp.library()
        assert not ucx.is_available()
    ucp.library.cache_clear()
