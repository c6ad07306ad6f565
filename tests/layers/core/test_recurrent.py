"""A recurrent layer records a fixed number of calls, however many steps it runs over."""

from __future__ import annotations

from collections import Counter

import pytest

from osucaffe.backends.primitives import Program
from osucaffe.blob import Blob
from osucaffe.layer import create_layer
from osucaffe.proto import LayerParameter, parse_text


def recorded(type_: str, steps: int) -> Counter[str]:
    """How often each primitive is called in forward and backward."""
    text = (
        f'name: "op" type: "{type_}" bottom: "x" bottom: "keep" top: "y" '
        'recurrent_param { num_output: 5 weight_filler { type: "gaussian" } }'
    )
    layer = create_layer(parse_text(text, LayerParameter), "TRAIN")
    bottom = [Blob("x", (steps, 2, 3)), Blob("keep", (steps, 2))]
    top = [Blob("y", shape) for shape in layer.setup([blob.shape for blob in bottom])]
    program = Program()
    layer.forward(program, bottom, top)
    layer.backward(program, top, [True, False], bottom)
    return Counter(call.name for call in program.calls)


@pytest.mark.parametrize(("type_", "products"), [("LSTM", 1), ("RNN", 2)])
def test_the_products_of_all_steps_are_one_call(type_: str, products: int) -> None:
    calls = recorded(type_, 7)
    assert calls["inner_product"] == products  # an RNN has one more behind its states
    assert calls["inner_product_backward_data"] == products
    assert calls["recurrent"] == calls["recurrent_backward"] == 1
    assert calls == recorded(type_, 2)
