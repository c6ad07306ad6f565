"""The layer types are those of Caffe 1.0 and a few more, and each knows its settings."""

from __future__ import annotations

import inspect

from osucaffe.layer import layer_types, messages_of, settings_of
from osucaffe.proto import LayerParameter

CAFFE = {
    "AbsVal", "Accuracy", "ArgMax", "BNLL", "BatchNorm", "BatchReindex", "Bias", "Clip", "Concat",
    "ContrastiveLoss", "Convolution", "Crop", "Data", "Deconvolution", "Dropout", "DummyData",
    "ELU", "Eltwise", "Embed", "EuclideanLoss", "Exp", "Filter", "Flatten", "HDF5Data",
    "HDF5Output", "HingeLoss", "Im2col", "ImageData", "InfogainLoss", "InnerProduct", "Input",
    "LRN", "LSTM", "LSTMUnit", "Log", "MVN", "MemoryData", "MultinomialLogisticLoss", "PReLU",
    "Parameter", "Pooling", "Power", "Python", "RNN", "ReLU", "Reduction", "Reshape", "SPP",
    "Scale", "Sigmoid", "SigmoidCrossEntropyLoss", "Silence", "Slice", "Softmax", "SoftmaxWithLoss",
    "Split", "Swish", "TanH", "Threshold", "Tile", "WindowData",
}  # fmt: skip


def test_every_type_of_caffe_is_there() -> None:
    """tests/test_compatibility.py compares all types with the page that lists them."""
    assert set(layer_types()) >= CAFFE


def test_each_type_says_in_a_line_what_it_does() -> None:
    for name, layer in layer_types().items():
        line = (inspect.getdoc(layer) or "").partition("\n")[0]
        assert line.endswith("."), name
        assert len(line) <= 100, name


def test_every_settings_message_belongs_to_a_type() -> None:
    """Of Caffe's; a fork's waits for its layer, as docs/caffe-compatibility.md says."""
    read = {message for layer in layer_types().values() for message in messages_of(layer)}
    fields = LayerParameter.DESCRIPTOR.fields_by_name
    known = {name for name in fields if name.endswith("_param")}
    assert read <= known
    assert read >= {name for name in known if fields[name].number < 100_000_000}


def test_settings_are_the_schemas() -> None:
    types = layer_types()
    assert settings_of(types["ReLU"]) == {"relu_param": ["negative_slope", "engine"]}
    assert set(settings_of(types["RNN"])) == {"recurrent_param"}
    assert settings_of(types["AbsVal"]) == {}
    assert "round_mode" in settings_of(types["Pooling"])["pooling_param"]
    assert "kernel_depth" not in settings_of(types["Pooling"])["pooling_param"]
