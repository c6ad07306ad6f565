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
FORKS = {
    "AnnotatedData", "Axpy", "BN", "BboxAccuracy", "BilinearInterpolation", "BoxAnnotatorOHEM",
    "BoxGroupOutput", "BoxOutput", "CenterLoss", "ChannelScale", "Convolution3D",
    "ConvolutionDepthwise", "CropCenter", "DecodeBBox", "DenseImageData", "DepthwiseConvolution",
    "DetectNetTransformation", "DetectionAccuracy", "DetectionData", "DetectionEvaluate",
    "DetectionGroupAccuracy", "DetectionGroupLoss", "DetectionLoss", "DetectionOutput",
    "DiceCoefLoss", "EvalData", "EvalDetection", "Flip", "FocalLoss", "FrcnnOutput", "Gather",
    "GeneralContrastiveLoss", "GlobalLSEMargin", "HardMining", "ImageFloatData", "ImageGtData",
    "ImageLabelmapData", "ImageSegData", "InnerDistance", "Interp", "JSDLoss", "LabelSpecificAdd",
    "LabelSpecificRescale", "Lstm", "MarginInnerProduct", "MaskPooling", "MaskResize",
    "MultiBoxLoss", "MultiStageMeanfield", "Noise", "Normalize", "PSROIPooling", "Permute",
    "Pooling3D", "PriorBox", "PriorBoxClustered", "Proposal", "ProposalTarget", "ROIAlign",
    "ROIPooling", "ROIWarping", "ReLU6", "RegionLoss", "Reorg", "ScaleRoute", "SeLu", "SeLuDropout",
    "SegAccuracy", "SegData", "ShuffleChannel", "SmoothL1Loss", "SmoothL1LossOHEM",
    "SoftmaxWithLossOHEM", "Upsample", "VideoData", "WeightEuclideanLoss", "Yolov3",
    "Yolov3DetectionOutput",
}  # fmt: skip
OWN = {"GELU", "L1Loss", "LayerNorm", "PatchData", "PixelShuffle"}


def test_the_types_are_caffes_its_forks_and_our_own() -> None:
    assert set(layer_types()) == CAFFE | FORKS | OWN


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
