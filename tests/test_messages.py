"""Whatever ends a command is told in one message that fits a terminal; what is offered for a slip
of the fingers is what was meant, or nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from osucaffe.errors import UserError, listed, nearest
from osucaffe.layer import layer_types
from osucaffe.messages import explain, is_users, tidy
from osucaffe.proto import LayerParameter
from tests.processes import python


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("net.prototxt: wrong"), "net.prototxt: wrong"),
        (KeyboardInterrupt(), "interrupted"),
        (MemoryError(), "out of memory (no more is given): lower the batch size"),
        (RuntimeError("can't start new thread"), "out of memory (can't start new thread)"),
        (ImportError("x.so: failed to map segment from shared object"), "out of memory (x.so"),
        (OSError("x.so: failed to map segment from shared object"), "out of memory (x.so"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory"),
        (PermissionError(errno.EACCES, "Permission denied", "/home/x"), "/home/x: Permission"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError("truncated"), "truncated"),
        (
            ValueError("odd\n\nand long"),
            "ValueError: odd. This is a bug in osucaffe: please report it",
        ),
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


FIELDS = list(LayerParameter.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("nmae", "name"),
        ("typ", "type"),
        ("convolution_parma", "convolution_param"),
        ("convolutoin_param", "convolution_param"),
        ("mvm_param", "mvn_param"),
        ("inner_produkt_prams", "inner_product_param"),
        ("iner_produkt_prams", None),  # four slips
        ("bnn_param", "bn_param"),
        ("trt_param", None),  # not lrn_param
        ("picpac_param", None),
        ("quartet_loss_param", None),  # not region_loss_param
        ("image_transform_param", None),  # not cpm_transform_param
        ("z", None),
        ("", None),
    ],
)
def test_fields(word: str, meant: str | None) -> None:
    assert nearest(word, FIELDS) == meant


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("Convolutoin", "Convolution"),
        ("relu", "ReLU"),
        ("Softmaxwithloss", "SoftmaxWithLoss"),
        ("Warp", None),  # not Crop
        ("DocData", None),  # not Data
        ("DeformablePSROI", None),
    ],
)
def test_layer_types(word: str, meant: str | None) -> None:
    assert nearest(word, layer_types()) == meant


def test_nothing_is_near_when_nothing_is_known() -> None:
    assert nearest("name", []) is None


def test_of_many_the_first_are_named() -> None:
    assert listed([]) == ""
    assert listed(range(3), 3) == "0, 1, 2"
    assert listed(map(str, range(5001)), 2) == "0, 1 and 4,999 more"
