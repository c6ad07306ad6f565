"""The passes NetParameter -> NetParameter: filtering by state, insertion of splits."""

import pytest
from google.protobuf import text_format

from osucaffe.errors import UserError
from osucaffe.graph.prototxt.filter import filter_layers, net_state
from osucaffe.graph.prototxt.splits import insert_splits
from osucaffe.proto import caffe_pb2


def net(text: str) -> caffe_pb2.NetParameter:
    return text_format.Parse(text, caffe_pb2.NetParameter())


def names(param: caffe_pb2.NetParameter) -> list[str]:
    return [layer.name for layer in param.layer]


RULES = """
layer { name: "always" }
layer { name: "train" include { phase: TRAIN } }
layer { name: "not_test" exclude { phase: TEST } }
layer { name: "level" include { min_level: 1 max_level: 2 } }
layer { name: "stage" include { stage: "a" stage: "b" } }
layer { name: "not_stage" include { not_stage: "a" } }
layer { name: "either" include { stage: "b" } include { phase: TEST } }
"""


@pytest.mark.parametrize(
    ("phase", "level", "stages", "expected"),
    [
        ("TRAIN", 0, [], "always train not_test not_stage"),
        ("TEST", 0, [], "always not_stage either"),
        ("TEST", 1, [], "always level not_stage either"),
        ("TEST", 3, [], "always not_stage either"),
        ("TRAIN", 0, ["a", "b"], "always train not_test stage either"),
        ("TRAIN", 0, ["b"], "always train not_test not_stage either"),
    ],
)
def test_filter(phase, level, stages, expected):
    param = net(RULES)
    assert names(filter_layers(param, net_state(param, phase, level, stages))) == expected.split()


def test_include_and_exclude_together_are_refused():
    param = net('layer { name: "x" include { phase: TRAIN } exclude { phase: TEST } }')
    with pytest.raises(UserError, match='layer "x"'):
        filter_layers(param, net_state(param, "TRAIN"))


def test_splits_are_named_as_caffe_names_them():
    split = insert_splits(
        net("""
        layer { name: "in" top: "data" top: "label" }
        layer { name: "ip" bottom: "data" top: "ip" }
        layer { name: "relu" bottom: "ip" top: "ip" }
        layer { name: "loss" bottom: "ip" bottom: "label" top: "loss" }
        layer { name: "accuracy" bottom: "ip" bottom: "label" top: "accuracy" }
        """)
    )
    assert " ".join(names(split)) == "in label_in_1_split ip relu ip_relu_0_split loss accuracy"
    assert list(split.layer[5].bottom) == ["ip_relu_0_split_0", "label_in_1_split_0"]
    assert list(split.layer[6].bottom) == ["ip_relu_0_split_1", "label_in_1_split_1"]
    assert list(split.layer[3].bottom) == list(split.layer[3].top) == ["ip"]


def test_a_loss_weight_moves_to_the_split():
    split = insert_splits(
        net("""
        layer { name: "in" top: "x" }
        layer { name: "norm" bottom: "x" top: "n" loss_weight: 2 }
        layer { name: "next" bottom: "n" top: "y" }
        """)
    )
    assert names(split) == ["in", "norm", "n_norm_0_split", "next"]
    assert list(split.layer[1].loss_weight) == [0]
    assert list(split.layer[2].loss_weight) == [2, 0]
    assert list(split.layer[3].bottom) == ["n_norm_0_split_1"]


def test_a_missing_bottom_is_named():
    with pytest.raises(UserError, match=r'"ip".*no earlier layer makes its bottom "dat".*"data"'):
        insert_splits(
            net('layer { name: "in" top: "data" } layer { name: "ip" bottom: "dat" top: "y" }')
        )
