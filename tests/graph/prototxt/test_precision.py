"""NVIDIA Caffe's precision fields are read, and said to be ignored, once."""

from __future__ import annotations

import logging

import pytest
from google.protobuf import text_format

from osucaffe.graph.prototxt.precision import warn_of_precision
from osucaffe.proto import NetParameter

LAYER = 'layer { name: "x" type: "ReLU" bottom: "a" top: "b" %s }'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", None),
        (LAYER % "", None),
        ("global_grad_scale: 128", "global_grad_scale"),
        ("default_forward_type: FLOAT16 default_backward_math: FLOAT",
         "default_backward_math, default_forward_type"),
        (LAYER % "forward_type: FLOAT16" + LAYER % "forward_type: FLOAT", "forward_type"),
    ],
)  # fmt: skip
def test_one_warning_names_the_fields(
    text: str, named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "osucaffe"):
        warn_of_precision(text_format.Parse('name: "net"' + text, NetParameter()))
    assert [named is not None] == [bool(caplog.records)]
    if named:
        assert len(caplog.records) == 1
        assert named in caplog.text
