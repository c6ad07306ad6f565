"""Weak and strong scaling: what batch_size means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from osucaffe.errors import UserError
from osucaffe.parallel.batch import describe, divide_batches
from osucaffe.proto import LayerParameter, NetParameter, parse_text
from osucaffe.solvers.nets import Choice

NET = """
layer { name: "d" type: "Data" top: "x" include { phase: TRAIN } data_param { batch_size: 12 } }
layer { name: "t" type: "Data" top: "x" include { phase: TEST } data_param { batch_size: 10 } }
layer { name: "i" type: "ImageData" top: "y" exclude { phase: TEST }
  image_data_param { batch_size: 12 } }
"""


def net(text: str = NET) -> NetParameter:
    return parse_text(text, NetParameter)


def test_strong_scaling_divides_the_batches_of_training_only() -> None:
    whole = net()
    divided = divide_batches(whole, 3)
    assert divided.layer[0].data_param.batch_size == 4
    assert divided.layer[1].data_param.batch_size == 10
    assert divided.layer[2].image_data_param.batch_size == 4
    assert whole.layer[0].data_param.batch_size == 12


def test_every_layer_that_has_a_batch_size_is_divided() -> None:
    messages = [
        field.name
        for field in LayerParameter.DESCRIPTOR.fields
        if field.message_type and "batch_size" in field.message_type.fields_by_name
    ]
    assert {"data_param", "patch_data_param"} < set(messages)
    # Rois of an image, and sequences that lie behind one another in a blob: no records.
    others = {"detection_group_loss_param", "lstm_param", "proposal_target_param"}
    assert others < set(messages)
    for name in set(messages) - others:
        layer = f'layer {{ name: "d" top: "x" type: "" {name} {{ batch_size: 8 }} }}'
        (divided,) = divide_batches(parse_text(layer, NetParameter), 2).layer
        assert getattr(divided, name).batch_size == 4


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(
        UserError, match=r'layer "d" \(Data\), batch_size: 12 cannot be divided among 5'
    ):
        divide_batches(net(), 5)


def test_batches_of_unlike_sizes_are_not_divided() -> None:
    unlike = net(
        NET.replace("image_data_param { batch_size: 12 }", "image_data_param { batch_size: 6 }")
    )
    with pytest.raises(
        UserError,
        match=r'"i" \(ImageData\), batch_size: 6, and that of layer "d" \(Data\) is 12: --scal',
    ):
        divide_batches(unlike, 3)


def test_layers_of_another_stage_are_not_compared() -> None:
    rule = 'exclude { stage: "small" } image_data_param { batch_size: 6 }'
    choice = Choice(
        net(NET.replace("exclude { phase: TEST }\n  image_data_param { batch_size: 12 }", rule))
    )
    assert [each.name for each in replace(choice, stages=("small",)).chosen("TRAIN").layer] == ["d"]
    divide_batches(replace(choice, stages=("small",)).chosen("TRAIN"), 3)
    with pytest.raises(UserError, match="batch_size: 6"):
        divide_batches(choice.chosen("TRAIN"), 3)


def test_batches_that_are_shapes_are_refused() -> None:
    with pytest.raises(UserError, match='layer "x" \\(DummyData\\): --scal strong'):
        divide_batches(net('layer { name: "x" type: "DummyData" top: "x" }'), 2)


def test_the_global_batch_is_told() -> None:
    assert describe(net(), 3, 1) == (
        "Global batch: 36 records per update (12 records on each of 3 ranks)"
    )
    assert "72 records per update" in describe(net(), 3, 2)
    assert describe(net(""), 3, 1) == "Training on 3 ranks"
