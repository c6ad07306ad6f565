"""What models and prototxts tell of how images entered a net in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osucaffe.data.pictures.preprocessing import Preprocessing, find_preprocessing
from osucaffe.errors import UserError
from osucaffe.proto import (
    NetParameter,
    array_to_blob,
    parse_text,
    read_weights,
    upgrade_net,
    write_mean,
    write_weights,
)

IP = 'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" }'
V1 = """
layers { name: "in" type: DATA top: "data" top: "label"
  transform_param { scale: 0.5 mean_value: 3 crop_size: 8 } data_param { source: "x" } }
layers { name: "ip" type: INNER_PRODUCT bottom: "data" top: "ip" }
"""


def reader(name: str, top: str = "data", transform: str = "", more: str = "", kind: str = "Data"):
    text = f"transform_param {{ {transform} }}" if transform else ""
    return f'layer {{ name: "{name}" type: "{kind}" top: "{top}" {text} {more} }}\n'


def find(text: str, blob: str = "data") -> Preprocessing | None:
    return find_preprocessing(upgrade_net(parse_text(text, NetParameter)), "net", blob)


def test_every_field() -> None:
    found = find(reader("in", transform="scale: 0.5 mean_value: 1 mean_value: 2 mirror: true"))
    assert found == Preprocessing('net, layer "in" (Data)', 0.5, (1, 2), "", Path())
    assert str(found) == "the mean 1, 2, scale 0.5"
    found = find(
        reader("in", transform='mean_file: "m" crop_size: 5', kind="ImageData",
               more="image_data_param { new_height: 7 new_width: 9 }")
    )  # fmt: skip
    assert found is not None
    assert (found.mean_file, found.extents, str(found)) == ("m", (7, 9), "the mean in m, scale 1")
    plain = find(reader("in"))  # bytes as they are: that is known
    assert plain is not None
    assert str(plain) == "no mean, scale 1"


@pytest.mark.parametrize(
    ("text", "scale"),
    [
        (IP, None),
        ('layer { name: "x" type: "Input" top: "data" }', None),
        (reader("x", kind="MemoryData"), None),
        (reader("x", kind="MemoryData", transform="scale: 3"), 3),
        (reader("a", transform="scale: 2") + reader("b", "label", "scale: 3"), 2),
        (reader("a", "x", "scale: 2") + reader("b", "y", "scale: 3"), None),
        (reader("a", "x", "scale: 2") + reader("b", "y", "scale: 2"), 2),
        (
            reader("a", transform="scale: 2", more="include { phase: TRAIN }")
            + reader("a", transform="scale: 3", more="include { phase: TEST }"),
            3,
        ),
        (V1, 0.5),
        (V1.replace("transform_param { scale: 0.5 mean_value: 3 crop_size: 8 } data_param {",
                    "data_param { scale: 0.25"), 0.25),
    ],
)  # fmt: skip
def test_which_layer_counts(text: str, scale: float | None) -> None:
    found = find(text)
    assert (found.scale if found else None) == scale


@pytest.mark.parametrize("version", [1, 2])
def test_models_of_either_form_tell(version: int, tmp_path: Path) -> None:
    net = parse_text(V1, NetParameter)
    layers = net.layers
    if version == 2:
        net = upgrade_net(net)
        layers = net.layer
    layers[1].blobs.append(array_to_blob(np.ones(3, np.float32)))
    path = tmp_path / "net.caffemodel"
    path.write_bytes(net.SerializeToString())
    found = find_preprocessing(read_weights(path), path, "data")
    assert found is not None
    assert (found.scale, found.mean_values) == (0.5, (3,))
    write_weights(tmp_path / "net.h5", read_weights(path))
    again = find_preprocessing(read_weights(tmp_path / "net.h5"), path, "data")
    assert again == found


def test_a_fork_that_has_something_else_there_is_read(tmp_path: Path) -> None:
    """Field 36 of a V1 layer: bytes that are no TransformationParameter."""
    blob = array_to_blob(np.ones(3, np.float32)).SerializeToString()
    name, top, other = b"\x22\x01a", b"\x1a\x01x", b"\xa2\x02\x02\x2a\x7f"
    layer = name + top + other + b"\x32" + bytes([len(blob)]) + blob
    (tmp_path / "net").write_bytes(b"\x12" + bytes([len(layer)]) + layer)
    weights = read_weights(tmp_path / "net")
    assert [(each.name, len(each.blobs)) for each in weights.layer] == [("a", 1)]
    assert find_preprocessing(weights, "net") is None


def test_what_is_alike() -> None:
    def make(**fields) -> Preprocessing:
        return Preprocessing("", **fields)

    assert make().is_like(make(mean_values=(0.0,)))
    assert make(mean_values=(5.0,)).is_like(make(mean_values=(5.0, 5.0, 5.0)))
    assert make(mean_file="a/m").is_like(make(mean_file="b/m"))
    assert make(mean_file="m").is_like(make(mean_values=(104.0, 117.0, 123.0)))
    assert not make(scale=2).is_like(make())
    assert not make(mean_values=(5.0,)).is_like(make())
    assert not make(mean_values=(5.0, 6.0, 7.0)).is_like(make(mean_values=(7.0, 6.0, 5.0)))
    assert not make(mean_file="m").is_like(make(mean_file="n"))
    assert not make(mean_file="m").is_like(make())


def test_a_mean_is_where_it_was_or_beside_the_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    net = parse_text(reader("in", transform='mean_file: "data/m"'), NetParameter)
    found = find_preprocessing(net, "models/net.caffemodel")
    assert found is not None
    with pytest.raises(
        UserError, match=r'"in" \(Data\): the mean in "data/m" .* nor at models/m: '
    ):
        found.mean()
    mean = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    write_mean(tmp_path / "models" / "m", mean)
    assert np.array_equal(found.mean(), mean)
    (tmp_path / "data").mkdir()
    write_mean(tmp_path / "data" / "m", mean + 1)
    assert np.array_equal(found.mean(), mean + 1)
