"""Each field that all layers and nets have, changed alone, changes what is learned, or is told."""

from __future__ import annotations

import pytest

from osucaffe.errors import UserError
from osucaffe.proto import LayerParameter, NetParameter

from .runs import parameters, solver

NET = """
%s
layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param {
  shape { dim: 8 dim: 6 } shape { dim: 8 } data_filler { type: "gaussian" } } }
layer { name: "first" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" }
  inner_product_param { num_output: 6 weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "a" top: "b" %s }
layer { name: "ip" type: "InnerProduct" bottom: "b" top: "score" %s
  inner_product_param { num_output: 6 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "extra" type: "Power" bottom: "score" top: "p" power_param { scale: 0.3 } %s }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""
PLACES = ("net", "drop", "ip", "extra")
BLOBS = f"blobs {{ shape {{ dim: [6, 6] }} data: [{', '.join(['0.5'] * 36)}] }}"

ROWS = [
    # the field, where it stands, its text
    ("name", "ip", 'param { name: "w" }'),
    ("lr_mult", "ip", "param { lr_mult: 3 }"),
    ("decay_mult", "ip", "param { decay_mult: 3 }"),
    ("phase", "drop", "phase: TEST"),
    ("loss_weight", "extra", "loss_weight: 0.1"),
    ("blobs", "ip", BLOBS),
    ("propagate_down", "ip", "propagate_down: false"),
    ("include", "extra", "include { phase: TEST }"),
    ("exclude", "extra", "exclude { phase: TRAIN }"),
    ("min_level", "extra", "include { min_level: 3 }"),
    ("max_level", "extra", "include { max_level: -1 }"),
    ("stage", "extra", 'include { stage: "s" }'),
    ("not_stage", "extra", 'exclude { not_stage: "s" }'),
    ("pooling_param", "ip", "pooling_param { kernel_size: 3 }"),
    *((f"{way}_{what}", "ip", f"{way}_{what}: FLOAT16")
      for way in ("forward", "backward") for what in ("type", "math")),
    *((f"default_{way}_{what}", "net", f"default_{way}_{what}: FLOAT16")
      for way in ("forward", "backward") for what in ("type", "math")),
    ("state", "net", "state { phase: TEST }"),
    ("debug_info", "net", "debug_info: true"),
    ("global_grad_scale", "net", "global_grad_scale: 1000"),
    ("global_grad_scale_adaptive", "net", "global_grad_scale_adaptive: true"),
    ("bn_stats_batch_size", "net", "bn_stats_batch_size: 4"),
]  # fmt: skip

QUICK = {"blobs", "debug_info", "forward_type", "lr_mult", "phase", "pooling_param"}
"""Some of several kinds: the others are left to `make test-long`."""

EXCEPTIONS = {
    "the graph itself, which other tests are about":
        "type bottom top layer layers input input_shape input_dim param share_mode",
    "it changes which gradients of inputs there are (layers/test_gradients.py)": "force_backward",
    "how to compute, not what: here the backend chooses":
        "engine cudnn_math_override eltwise_mem_sharing reduce_buckets "
        "default_conv_algos_override default_cudnn_math_override",
    "what the log shows": "debug",
    "told (proto/test_unread_fields.py), or how nodes of Intel Caffe share layers": "multinode",
}  # fmt: skip


def learned(place: str, text: str) -> object:
    """What two iterations make of the parameters and outputs of the net with this text."""
    run = solver("weight_decay: 0.1", NET % tuple(text if each == place else "" for each in PLACES))
    run.step(2)
    outputs = {name: run.net.read(name).tobytes() for name in run.net.outputs}
    return outputs, {name: each.tobytes() for name, each in parameters(run).items()}


@pytest.mark.parametrize(
    ("field", "place", "text"),
    [
        pytest.param(*row, marks=[] if row[0] in QUICK else pytest.mark.long, id=row[0])
        for row in ROWS
    ],
)
def test_no_field_is_dropped_without_a_word(
    field: str, place: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = learned("", "")
    if field == "state":
        text, before = f"{text} #", learned("extra", "include { phase: TEST }")
    caplog.clear()
    try:
        acts = learned(place, text) != before
    except UserError as error:
        acts, told = False, [str(error)]
    else:
        told = caplog.messages
    assert acts or any(field in line for line in told)


def test_every_field_is_there() -> None:
    rows = {field for field, *_ in ROWS} | set(" ".join(EXCEPTIONS.values()).split())
    for kind in LayerParameter, NetParameter:
        fields = {each.name for each in kind.DESCRIPTOR.fields}
        assert not {each for each in fields if not each.endswith("_param")} - rows
