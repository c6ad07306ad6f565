"""Pickles as data: CIFAR-10's files are read, as every version of Python and NumPy writes them, and
nothing that a pickle names is run."""

from __future__ import annotations

import pickle
import pickletools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.data.sets import pickled
from osucaffe.data.sets.pickled import PickledArray, read_pickle

PIXELS = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20


def python2() -> bytes:
    """A file as Python 2 with NumPy 1 wrote CIFAR-10's: protocol 2, all text as bytes."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\t"
        b"(K\x01K\x03K\x04\x86cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + b"T" + struct.pack("<i", PIXELS.size) + PIXELS.tobytes() + b"tb"
    )  # fmt: skip
    labels = b"]q\x05(K\x06M\x09\x00K\x00e"
    return (
        b"\x80\x02}q\x01(" + text(b"batch_label") + b"q\x02" + text(b"training batch") + b"q\x03"
        + text(b"labels") + b"q\x04" + labels + text(b"data") + b"q\x06" + array + b"u."
    )  # fmt: skip


def check(content: bytes) -> None:
    found = read_pickle(content)
    assert found["labels"] == [6, 9, 0]
    assert isinstance(found["data"], PickledArray)
    np.testing.assert_array_equal(found["data"].uint8(), PIXELS)


def test_a_file_as_python_2_wrote_it() -> None:
    content = python2()
    assert pickle.loads(content, encoding="bytes")[b"labels"] == [6, 9, 0]  # it is one
    check(content)


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("key", [str, str.encode])
def test_a_file_as_python_3_writes_it(protocol: int, order: Any, key: Any) -> None:
    values = {key("labels"): [6, 9, 0], key("data"): np.array(PIXELS, order=order)}
    content = pickle.dumps(values, protocol=protocol)
    check(content)
    older = content.replace(b"numpy._core", b"numpy.core")  # no length is given in protocol 2
    if protocol < 4:
        check(older)


class Ran:
    """What unpickles as a call of this."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", [1, 2, 4])
def test_nothing_that_a_pickle_names_is_run(protocol: int, tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(ValueError, match=r"it asks for (io|_io)\.open"):
        read_pickle(pickle.dumps(Ran(open, str(made), "w"), protocol=protocol))
    assert not made.exists()


def test_no_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one of NumPy's, such as f2py's main program."""
    monkeypatch.setattr("builtins.__import__", lambda *_: pytest.fail("an import"))
    with pytest.raises(ValueError, match=r"it asks for numpy\.f2py\.__main__\.dtype"):
        read_pickle(b"cnumpy.f2py.__main__\ndtype\n.")


HUGE = b"J\xff\xff\xff\x7f"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"\x80\x02",
        b"\x80\x02}r\xff\xff\xff\x3f",  # a place in the memo, but no end
        b"\x80\x02h\x05.",
        b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x.",
        b"\x80\x02}(K\x01K\x02u.",  # a key that is a number
        b"\x80\x02}((((tttK\x02u.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02}(X" + struct.pack("<I", 200) + b"x" * 200 + b"K\x02u.",
        b"\x80\x02K\x01K\x02\x85R.",
        b"\x80\x02K\x01K\x02e.",
        b"\x80\x04]K\x01\x93.",
        b"\x80\x02\x82\x01.",
        b"\xff",
    ],
)
def test_damaged_ones_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_pickle(content)


def test_a_large_number_of_a_place_takes_no_memory() -> None:
    assert read_pickle(b"\x80\x02}r\xff\xff\xff\x3f.") == {}


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"(K\x01" + HUGE + HUGE + b"\x86U\x02u1\x89U\x01xtb",
        b"(K\x01\x8a\x09" + b"\x01" * 9 + b"\x85U\x02u1\x89U\x01xtb",
        b"(K\x01K\x01\x85U\x02i8\x89U\x01xtb",
        b"(K\x01K\x01\x85U\x02u1\x89Ntb",
        b"(K\x01tb",
    ],
)
def test_damaged_arrays_are_refused(state: bytes) -> None:
    head = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    found = read_pickle(head + state + b".")
    with pytest.raises(ValueError, match="its array"):
        found.uint8()


def test_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickle.dumps(list(range(300)))
    count = sum(1 for _ in pickletools.genops(content))
    monkeypatch.setattr(pickled, "_LONGEST", count)
    assert read_pickle(content) == list(range(300))
    monkeypatch.setattr(pickled, "_LONGEST", count - 2)
    with pytest.raises(ValueError, match="a pickle of more than"):
        read_pickle(content)
