"""Whatever ends a command is told in one message that fits a terminal."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from osucaffe.errors import UserError
from osucaffe.messages import explain, is_users, tidy
from tests.processes import python


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("net.prototxt: wrong"), "net.prototxt: wrong"),
        (KeyboardInterrupt(), "interrupted"),
        (MemoryError(), "out of memory (no more is given): lower the batch size"),
        (RuntimeError("can't start new thread"), "out of memory (can't start new thread)"),
        (ImportError("x.so: failed to map segment from shared object"), "out of memory (x.so"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory"),
        (PermissionError(errno.EACCES, "Permission denied", "/home/x"), "/home/x: Permission"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError("truncated"), "truncated"),
        (ValueError("odd\n\nand long"), "ValueError: odd. Nothing should end so: please report it"),
    ],
)
def test_one_message(error: BaseException, told: str) -> None:
    assert explain(error).startswith(told)
    assert not is_users(error)


def test_echoed_input_is_cut() -> None:
    told = tidy(f'layer "{"n" * 9000}" of {"/p" * 300} and "{"a b " * 90}"')
    assert len(told) < 800
    assert [size for size in (9002, 600, 362) if f"({size} characters)" in told] == [9002, 600, 362]
    assert tidy(path := "/data/" + "p" * 190) == path


def test_terminals_are_not_steered() -> None:
    assert tidy('layer "\x1b[2J\r\x07\udc80é"\nnext') == 'layer "\\x1b[2J\\r\\x07\\udc80é"\nnext'


def test_users_code(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def fail():\n    raise KeyError('mine')\n")
    code = (
        "import own\nfrom osucaffe.messages import is_users\n"
        "try:\n    own.fail()\nexcept KeyError as error:\n    print(is_users(error))"
    )
    assert python("-c", code, cwd=tmp_path).stdout == "True\n"


def test_mpi_tells_of_another_ranks_end() -> None:
    lost = type("Exception", (RuntimeError,), {"__module__": "mpi4py.MPI"})("See the MPI_ERROR")
    told = explain(lost)
    assert told == "another rank has ended or cannot be reached (MPI: See the MPI_ERROR)"
