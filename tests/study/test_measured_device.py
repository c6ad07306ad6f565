"""What is measured of a device goes into a cluster file, whose other lines stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from osucaffe.errors import UserError
from osucaffe.study.cluster import read_cluster
from osucaffe.study.measured_device import write_device
from osucaffe.study.times import find_half_batch

BEFORE = """\
ranks_per_host = 2  # cores
[device]  # ours
tflops = 5
nap_us = 1000

[links.node]
latency_us = 5
gb_s = 50
[links.network]
latency_us = 6
gb_s = 12
[sources]
"device.tflops" = "assumed"
"""
AFTER = """\
ranks_per_host = 2  # cores
[device]  # ours
tflops = 0.25
nap_us = 1000
half_batch = 2.5

[links.node]
latency_us = 5
gb_s = 50
[links.network]
latency_us = 6
gb_s = 12
[sources]
"device.tflops" = "here"
"device.half_batch" = "here"
"device.images_per_second" = "here: a \\"net\\""

[device.images_per_second]
"a \\"net\\"" = [123.5, 64]
"""


def test_other_lines_stay(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(BEFORE)
    for _ in range(2):  # again: nothing is there twice
        fields = {"tflops": 0.25, "half_batch": 2.5}
        write_device(path, fields, 'a "net"', 123.46, 64, "here")
        assert path.read_text() == AFTER
    found = read_cluster(path).device
    assert (found.tflops, found.half_batch, found.nap_us) == (0.25, 2.5, 1000)
    assert found.seconds('a "net"', 64) == pytest.approx(64 / 123.5)


def test_what_cannot_be_written_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    inline = BEFORE.replace("nap_us = 1000", "images_per_second = { other = 5 }")
    path.write_text(inline)
    with pytest.raises(UserError, match=r"nothing was written .*tables of their own"):
        write_device(path, {}, "net", 1.0, 2, "here")
    assert path.read_text() == inline


def test_fixed_times_from_two_batches() -> None:
    """Of 4 ms and 0.5 ms an image: 8 images are fixed."""
    assert find_half_batch(64, 4 + 32, 8, 4 + 4) == pytest.approx(8)
    assert find_half_batch(64, 5.0, 8, 5.0) == 0
    assert find_half_batch(64, 64.0, 8, 7.0) == 0  # the small one does better
