"""Raw records on their way to a GPU: what is uploaded, and where the transformed ones lie; the
kernels of those that lie there already, run on the CPU."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.input.upload import DeviceUploads
from osucaffe.backends.cuda.layout import is_channels_last
from osucaffe.data.config import DataConfig
from osucaffe.net import Net
from tests.layers.nets import build as build_net
from tests.layers.reading.test_raw_records import read_net
from tests.layers.reading.test_sharded_records import all_ranks, wanted_of_ranks

from ..executed import execute
from ..simulated import simulate

RECORDS = Path(__file__).parents[3] / "fixtures" / "formats" / "raw6_lmdb"
NET = f"""
layer {{ name: "in" type: "Data" top: "data" top: "label"
  data_param {{ source: "{RECORDS}" batch_size: 4 backend: LMDB }}
  transform_param {{ crop_size: 20 mirror: true mean_value: 9 }} }}
layer {{ name: "double" type: "Power" bottom: "data" top: "double" power_param {{ scale: 2 }} }}
"""


def take(net: Net, count: int) -> list[np.ndarray]:
    found = []
    for _ in range(count):
        net.forward(0, 1)
        found += [net.read("data"), net.read("label")]
    return found


def build(backend: Any, **config: Any) -> Net:
    backend.raw_records = True
    return build_net(NET, backend, phase="TRAIN", seed=4, data_config=DataConfig(**config))


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")]
)
def test_bytes_are_uploaded(precision: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    nets = [build(Cuda(precision=precision, graphs=False)), build(Cpu())]
    for _ in range(3):
        fed = []
        for net in nets:
            net.forward()
            call = next(call for call in net.programs[0] if call.name == "transform")
            fed.append([net.backend.read(getattr(call, name)) for name in ("x", "table")])
        assert [array.dtype.name for array in fed[0]] == ["uint8", "int32"]
        np.testing.assert_equal(*fed)
    data = nets[0].blobs["data"].data
    assert data.layout.dtype == dtype
    assert is_channels_last(data)
    for net in nets:
        net.layers[0].close()


@pytest.mark.parametrize("keeps", [True, False])
def test_batches_of_kept_records(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's part is real, and the kernels run: only streams do not."""
    net = build(Cpu())
    wanted = take(net, 7)
    simulate(monkeypatch)
    execute(monkeypatch)
    monkeypatch.setattr(DeviceUploads, "free_bytes", lambda self: keeps << 30)
    net = build(Cuda(graphs=False), cache="device")
    np.testing.assert_equal(take(net, 7), wanted)
    net.layers[0].close()


def test_batches_of_records_among_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, the ranks being threads of this process."""

    def make(backend: Any, **options: Any) -> Net:
        return read_net(backend, RECORDS, "crop_size: 20 mirror: true", **options)

    wanted = wanted_of_ranks(2, functools.partial(make, Cpu()), 7, take)
    simulate(monkeypatch)
    execute(monkeypatch)
    monkeypatch.setattr(DeviceUploads, "free_bytes", lambda self: 40_000)
    found, nets = all_ranks(2, lambda **options: make(Cuda(graphs=False), **options), 7, take=take)
    np.testing.assert_equal(found, wanted)
    assert all(net.layers[0]._cached.slots.has.all() for net in nets)
