"""Tests of the layers Data, Input and DummyData: shapes, what forward places, bad settings."""

from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

from osucaffe.backends.primitives import Program
from osucaffe.blob import Blob
from osucaffe.errors import UserError
from osucaffe.layer import create_layer
from osucaffe.proto import caffe_pb2
from tests.layers.nets import build

FORMATS = Path(__file__).parents[2] / "fixtures" / "formats"
MNIST = FORMATS / "mnist200_lmdb"


class Built:
    """A layer with its tops and the function that its forward pass runs."""

    def __init__(self, text, phase="TRAIN", seed=1, key=3):
        self.layer = create_layer(
            text_format.Parse(text, caffe_pb2.LayerParameter()), phase, key=key, seed=seed
        )
        self.shapes = self.layer.setup([])
        self.tops = [Blob(f"top{i}", shape) for i, shape in enumerate(self.shapes)]
        program = Program()
        self.layer.forward(program, [], self.tops)
        self.calls = program.calls

    def forward(self):
        for call in self.calls:
            assert call.name == "host"
            assert call.feed
            call.function()
        return [blob.data.array for blob in self.tops]


def data_layer(extra="", transform="", tops='top: "data" top: "label"', source=MNIST):
    return f"""name: "mnist" type: "Data" {tops} transform_param {{ {transform} }}
        data_param {{ source: "{source}" batch_size: 64 backend: LMDB {extra} }}"""


def test_data_places_the_next_batch_without_a_copy():
    built = Built(data_layer("prefetch: 2", "scale: 0.5"))
    assert built.shapes == [(64, 1, 28, 28), (64,)]
    addresses = set()
    for step in range(6):
        data, label = built.forward()
        assert built.tops[0].data.address == data.ctypes.data
        addresses.add(data.ctypes.data)
        assert data.shape == (64, 1, 28, 28)
        assert data.dtype == np.float32
        assert label.shape == (64,)
        assert built.layer.position == 64 * (step + 1)
    assert len(addresses) == 3
    assert data.max() == 127.5
    built.layer.close()


def test_two_layers_may_read_one_database():
    train, test = Built(data_layer()), Built(data_layer(), "TEST")
    assert (train.forward()[0] == test.forward()[0]).all()
    train.layer.close()
    test.layer.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (data_layer(source="/no/where"), "data_param.source: LMDB /no/where does not exist"),
        (data_layer().replace("64", "0"), "data_param.batch_size: is missing"),
        (data_layer(source=""), "data_param.source: is missing"),
        (data_layer("", "crop_size: 29"), "transform_param.crop_size: 29 is larger"),
        (data_layer(tops='top: "a" top: "b" top: "c"'), "top: needs 1 to 2"),
    ],
)
def test_bad_settings_of_data_name_the_layer(text, message):
    with pytest.raises(UserError) as caught:
        Built(text)
    assert str(caught.value).startswith(f'layer "mnist" (Data), {message}')


def test_the_folder_says_which_database_it_is():
    """The format's default is LevelDB; Caffe's nets that leave it out name LMDBs all the same."""
    for backend in "", "backend: LEVELDB":
        assert Built(data_layer().replace("backend: LMDB", backend)).shapes[0] == (64, 1, 28, 28)


def test_input():
    text = 'name: "i" type: "Input" top: "a" top: "b" input_param { shape { dim: 2 dim: 3 } %s }'
    built = Built(text % "")
    assert built.shapes == [(2, 3), (2, 3)]
    assert built.calls == []
    assert all(blob.data.persistent for blob in built.tops)
    assert Built(text % "shape { dim: 7 }").shapes == [(2, 3), (7,)]
    with pytest.raises(UserError, match=r'layer "i" \(Input\), input_param.shape: 3 shapes for 2'):
        Built(text % "shape { dim: 7 } shape { dim: 1 }")
    with pytest.raises(UserError, match="0 shapes for 1"):
        Built('name: "i" type: "Input" top: "a"')


def dummy(tops, settings):
    names = " ".join(f'top: "top{i}"' for i in range(tops))
    return f'name: "d" type: "DummyData" {names} dummy_data_param {{ {settings} }}'


def test_dummy_data_fills_constants_once_and_random_values_anew():
    text = dummy(
        2, 'shape { dim: 2 dim: 5 } data_filler { value: 4 } data_filler { type: "gaussian" }'
    )
    net, again = (build(f"layer {{ {text} }}", phase="TRAIN") for _ in range(2))
    assert (net.read("top0") == 4).all()
    net.forward()
    first = net.read("top1")
    assert first.std() > 0
    net.write("top0", np.full((2, 5), 5))  # nobody fills it again
    net.forward()
    second = net.read("top1")
    assert (net.read("top0") == 5).all()
    assert (second != first).any()
    again.layers[0].position = 1
    again.forward()
    assert (again.read("top1") == second).all()


def test_dummy_data_defaults_and_the_old_form_of_shapes():
    built = Built(dummy(2, "num: 6 num: 7 channels: 3 height: 2 width: 1"))
    assert built.shapes == [(6, 3, 2, 1), (7, 3, 2, 1)]
    assert [values.any() for _, values in built.layer.initial] == [False, False]
    assert Built(dummy(3, "shape { dim: 4 }")).shapes == [(4,)] * 3
    for settings, message in [
        ("", "give shape"),
        ("num: 1", "give shape"),
        ("shape { dim: 1 } num: 1", "give either shape or num"),
        ("shape { dim: 1 } " + "data_filler { } " * 3, "3 fillers for 2 tops"),
        ("shape { dim: 1 } " * 3, "3 shapes for 2 tops"),
        ('shape { dim: 1 } data_filler { type: "guassian" }', 'unknown filler "guassian"'),
    ]:
        with pytest.raises(UserError, match=r'layer "d" \(DummyData\).*' + message):
            Built(dummy(2, settings))
