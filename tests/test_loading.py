"""What is said of weights that match no layer, and of layers that get none."""

from __future__ import annotations

import logging

import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.loading import load_weights
from osucaffe.net import Net
from tests.layers import nets

INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }'
FIRST = ", ".join(map(str, range(20)))
SHARED = 'param { name: "w" } param { name: "b" }'


def ip(name: str, number: int, more: str = "") -> str:
    bottom = f"y{number - 1}" if number else "x"
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "y{number}" {more} '
        'inner_product_param { num_output: 3 weight_filler { type: "gaussian" } } }\n'
    )


def build(*names: str, more: str = "", **options) -> Net:
    text = INPUT + "".join(ip(name, number, more) for number, name in enumerate(names))
    return nets.build(text, Cpu(onednn=False), **{"phase": "TRAIN"} | options)


def load(net: Net, *files: tuple[str, Net]) -> str:
    return load_weights([net], [(name, source.to_proto()) for name, source in files])


@pytest.mark.parametrize(
    ("own", "file", "said", "mismatch"),
    [
        ("a b", "a b", "2 of 2 layers with weights loaded", ""),
        (
            "a new",
            "a b",
            "1 of 2 layers with weights loaded; not in the file: new; unused: b",
            "not loaded: new; unused of file: b",
        ),
        ("a", "a b", "1 of 1 layers with weights loaded; unused: b", "unused of file: b"),
        ("a b", "a", "1 of 2 layers with weights loaded; not in the file: b", "not loaded: b"),
        (
            "a",
            f"a {' '.join(map(str, range(23)))}",
            f"1 of 1 layers with weights loaded; unused: {FIRST} and 3 more",
            f"unused of file: {FIRST} and 3 more",
        ),
    ],
)
def test_one_line_for_each_file(own: str, file: str, said: str, mismatch: str, caplog) -> None:
    net, source = build(*own.split()), build(*file.split())
    caplog.clear()
    with caplog.at_level(logging.INFO, "osucaffe"):
        assert load(net, ("file", source)) == mismatch
    (line,) = caplog.records
    assert line.getMessage() == f"file: {said}"
    assert line.levelname == ("WARNING" if mismatch else "INFO")


def test_layers_without_names_have_their_type(caplog) -> None:
    net, source = build("a", "", ""), build("a", "")
    assert load(net, ("file", build("a"))) == "not loaded: (InnerProduct), (InnerProduct)"
    caplog.clear()
    with caplog.at_level(logging.INFO, "osucaffe"):
        assert load(net, ("file", source)) == "not loaded: (InnerProduct)"
    order, count = caplog.messages
    assert order == 'Several layers are named "" (1 in the file, 2 here): matched in order'
    assert count == "file: 2 of 3 layers with weights loaded; not in the file: (InnerProduct)"


def test_nothing_that_matches_is_an_error() -> None:
    with pytest.raises(UserError, match=r"file: nothing to load: it has b, but .* this net are a;"):
        load(build("a"), ("file", build("b")))
    with pytest.raises(UserError, match=r"second: nothing to load: it has b, but the layers"):
        load(build("a"), ("first", build("a")), ("second", build("b")))
    with pytest.raises(UserError, match=r"file: nothing to load: it has no weights, but the layer"):
        load(build("a"), ("file", build()))
    assert load(build(), ("file", build())) == ""


def test_several_files_make_a_whole() -> None:
    net = build("a", "b")
    assert load(net, ("first", build("a")), ("second", build("b"))) == ""
    assert load(net, ("first", build("a", "c")), ("second", build("b"))) == "unused of first: c"


def test_a_shared_parameter_that_is_there_once_is_loaded() -> None:
    """HDF5 files of C++ Caffe hold it at its owner only."""
    net, model = build("a", "b", more=SHARED), build("a", "b", more=SHARED).to_proto()
    for blob in model.layer[2].blobs:
        blob.ClearField("data")
        blob.ClearField("shape")
    assert load_weights([net], [("file", model)]) == ""
    del model.layer[2]
    assert load_weights([net], [("file", model)]) == ""


def test_of_a_test_net_its_own_layers_count(caplog) -> None:
    """Those that it shares are the training net's."""
    train = build("a")
    test = build("a", "only", share=train, phase="TEST", gradients=False)
    whole, other = build("a", "only").to_proto(), build("a", "c").to_proto()
    caplog.clear()
    with caplog.at_level(logging.INFO, "osucaffe"):
        assert load_weights([train, test], [("file", whole)]) == ""
        mismatch = load_weights([train, test], [("file", other)])
    assert mismatch == "not loaded: only; unused of file: c"
    assert caplog.messages[0] == "file: 2 of 2 layers with weights loaded"
