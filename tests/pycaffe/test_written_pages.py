"""Which pages of weights were written is known, by whatever means that happened."""

from __future__ import annotations

import ctypes
import io
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osucaffe.pycaffe import forward_only
from osucaffe.pycaffe.written_pages import WrittenPages

from .nets import FUSED, feed, two_nets

PAGE = mmap.PAGESIZE
PAGEMAP = Path("/proc/self/pagemap")


@pytest.fixture
def memory() -> np.ndarray:
    return np.random.default_rng(1).integers(256, size=21 * PAGE + 100, dtype=np.uint8)


def pages(memory: np.ndarray) -> WrittenPages:
    begin = memory.ctypes.data
    try:
        return WrittenPages(begin, begin + memory.nbytes)
    except OSError as error:
        pytest.skip(f"here {error}")


def numpy_writes(memory: np.ndarray) -> None:
    memory[9 * PAGE] = memory[9 * PAGE]


def another_view(memory: np.ndarray) -> None:
    np.frombuffer(memory, np.uint8)[9 * PAGE] = 3


def an_address(memory: np.ndarray) -> None:
    ctypes.memset(memory.ctypes.data + 9 * PAGE, 3, 1)


def the_system(memory: np.ndarray) -> None:
    with Path("/dev/zero").open("rb", buffering=0) as file:
        assert isinstance(file, io.FileIO)
        file.readinto(memory[9 * PAGE : 9 * PAGE + 1])


@pytest.mark.parametrize("write_byte", [numpy_writes, another_view, an_address, the_system])
def test_a_byte_that_is_written(
    memory: np.ndarray, write_byte: Callable[[np.ndarray], None]
) -> None:
    before, begin = memory.copy(), memory.ctypes.data
    watch = pages(memory)
    np.testing.assert_array_equal(memory, before)
    watched = begin + -begin % PAGE
    [outside, tried, *rest, behind] = watch.ranges()
    assert (outside, tried) == ((0, watched), (watched, watched + PAGE))
    assert behind == ((begin + memory.nbytes) // PAGE * PAGE, 1 << 64)
    assert rest == []
    write_byte(memory)
    page = (begin + 9 * PAGE) // PAGE * PAGE
    assert watch.ranges()[2:-1] == [(page, page + PAGE)]
    assert np.flatnonzero(memory != before).tolist() in ([], [9 * PAGE])
    watch.close()


def test_memory_is_watched_once_at_a_time(memory: np.ndarray) -> None:
    watch = pages(memory)
    with pytest.raises(OSError, match="watched already"):
        WrittenPages(memory.ctypes.data + 5 * PAGE, memory.ctypes.data + 9 * PAGE)
    memory[:] = 0
    watch.close()
    watch = pages(memory)
    assert len(watch.ranges()) == 3
    watch.close()
    with pytest.raises(OSError, match="no whole page"):
        WrittenPages(memory.ctypes.data, memory.ctypes.data + PAGE // 2)


def test_a_process_that_was_forked_knows_its_own_pages(memory: np.ndarray) -> None:
    watch = pages(memory)
    if not (child := os.fork()):
        memory[9 * PAGE] ^= 1
        os._exit(len(watch.ranges()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    assert len(watch.ranges()) == 3
    watch.close()


@pytest.mark.parametrize("is_told", [True, False])
def test_weights_that_are_held_may_change_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    def refuse(begin: int, end: int) -> WrittenPages:
        raise OSError

    if not is_told:
        monkeypatch.setattr(forward_only, "WrittenPages", refuse)
    net, plain = two_nets(tmp_path, FUSED.replace("num_output: 5", "num_output: 500"))
    plain.params["bn"][2].data[...] = 1
    plain.save(str(tmp_path / "statistics"))
    net.copy_from(str(tmp_path / "statistics"))
    feed(1, net, plain)
    net.forward()
    held = [[blob.data for row in each.params.values() for blob in row] for each in (net, plain)]
    generator = np.random.default_rng(2)
    for _ in range(12):
        index = int(generator.integers(len(held[0])))
        at, value = int(generator.integers(held[0][index].size)), generator.normal()
        if generator.random() < 0.7:
            for arrays in held:
                arrays[index].reshape(-1)[at] = abs(value)
        late = generator.random() < 0.3
        for each in (net, plain):
            each.forward()
        if late:  # a blob is looked at when a weight has been written since
            for arrays in held:
                arrays[0][...] *= 1.5
        for name in ("scaled", "prob") if late else ("prob",):
            wanted = plain.blobs[name].data
            np.testing.assert_allclose(net.blobs[name].data, wanted, atol=1e-5 * abs(wanted).max())
    assert (net._forward_only._pages is not None) == (is_told and PAGEMAP.exists())
