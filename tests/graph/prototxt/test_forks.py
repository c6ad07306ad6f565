"""What nets of forks mean where they do not say it: offsets of Crop by the net's geometry (figures
by hand), and the warnings for what another Caffe reads otherwise."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.graph.prototxt.forks import align_crops, warn_of_forks
from osucaffe.net import Net
from osucaffe.proto import NetParameter, parse_text, upgrade_net

DATA = (
    'layer { name: "data" type: "Input" top: "data" '
    "input_param { shape { dim: [1, 1, %d, %d] } } } "
)


def layer(type_: str, bottoms: str, top: str, settings: str = "") -> str:
    given = " ".join(f'bottom: "{name}"' for name in bottoms.split())
    return f'layer {{ name: "{top}" type: "{type_}" {given} top: "{top}" {settings} }} '


def conv(bottom: str, top: str, kernel: int, more: str = "", type_: str = "Convolution") -> str:
    settings = f"num_output: 1 kernel_size: {kernel} bias_term: false {more}"
    filler = 'weight_filler { type: "constant" value: 1 }'
    return layer(type_, bottom, top, f"convolution_param {{ {settings} {filler} }}")


def up(bottom: str, top: str, kernel: int, stride: int, more: str = "") -> str:
    return conv(bottom, top, kernel, f"stride: {stride} {more}", "Deconvolution")


def pool(bottom: str, top: str) -> str:
    return layer("Pooling", bottom, top, "pooling_param { pool: AVE kernel_size: 2 stride: 2 }")


def vgg(pad: int) -> str:
    """VGG's five stages, the first convolution padded: s1 (before any pooling) to s5, and p1 to p5
    behind their poolings. Its other convolutions leave coordinates as they are."""
    text = conv("data", "s1", 3, f"pad: {pad}") + layer("ReLU", "s1", "s1")
    for stage in range(1, 5):
        text += pool(f"s{stage}", f"p{stage}") + conv(f"p{stage}", f"s{stage + 1}", 3, "pad: 1")
    return text + pool("s5", "p5")


HED = vgg(35) + layer("Crop", "s1 data", "out1") + "".join(
    up(f"s{n}", f"up{n}", 2**n, 2 ** (n - 1)) + layer("Crop", f"up{n} data", f"out{n}")
    for n in range(2, 6)
)  # fmt: skip
"""The side outputs of Xie and Tu 2015, whose net begins with pad: 35."""

FCN = (
    vgg(100) + conv("p5", "fc6", 7) + up("fc6", "score2", 4, 2)
    + conv("p4", "score-pool4", 1) + layer("Crop", "score-pool4 score2", "pool4c")
    + layer("Eltwise", "score2 pool4c", "fused") + up("fused", "score4", 4, 2)
    + conv("p3", "score-pool3", 1) + layer("Crop", "score-pool3 score4", "pool3c")
    + layer("Eltwise", "score4 pool3c", "final") + up("final", "big", 16, 8)
    + layer("Crop", "big data", "coarse")
)  # fmt: skip
"""FCN-8s (Long et al. 2015), which CRF-as-RNN begins with."""


def offsets(text: str) -> list[list[int]]:
    net = align_crops(upgrade_net(parse_text(text, NetParameter)))
    return [list(each.crop_param.offset) for each in net.layer if each.type == "Crop"]


@pytest.mark.parametrize(
    ("net", "expected"), [(HED, [34, 35, 36, 38, 42]), (FCN, [5, 9, 31])], ids=["HED", "FCN-8s"]
)
def test_crops_of_the_fcn_branch(net, expected, caplog) -> None:
    assert offsets(DATA % (500, 500) + net) == [[each] for each in expected]
    (record,) = caplog.records
    for said in ("FCN branch", f": {expected[0]}, ", "BVLC", "align: true", "offset: 0"):
        assert said in record.getMessage()
    caplog.clear()
    asked = net.replace('type: "Crop"', 'type: "Crop" crop_param { align: true }')
    assert offsets(DATA % (500, 500) + asked) == [[each] for each in expected]
    assert not caplog.records


def test_what_is_cropped_lies_over_its_image() -> None:
    net = Net(
        parse_text(DATA % (64, 80) + HED, NetParameter),
        backend=Cpu(), phase="TEST", inspectable=True,
    )  # fmt: skip
    image = np.zeros((1, 1, 64, 80))
    image[0, 0, 30, 50] = 1
    net.write("data", image)
    net.forward()
    for n in range(1, 6):
        found = net.read(f"out{n}")[0, 0]
        rows, columns = (found.sum(1 - axis) @ np.arange(found.shape[axis]) for axis in (0, 1))
        assert found.shape == (64, 80)
        # A pooled cell is up to half a window off.
        np.testing.assert_allclose(
            np.array([rows, columns]) / found.sum(), (30, 50), atol=2 ** (n - 1) / 2
        )
    saved = [each.crop_param.offset for each in net.to_proto().layer if each.type == "Crop"]
    assert saved == [[34], [35], [36], [38], [42]]


V1 = (
    'input: "data" input_dim: [1, 1, 40, 40] '
    'layers { name: "c" type: CONVOLUTION bottom: "data" top: "c" '
    "convolution_param { num_output: 1 kernel_size: 3 pad: 6 } } "
    'layers { name: "crop" type: CROP bottom: "%s" bottom: "data" top: "y" }'
)


def test_a_v1_crop_is_the_fcn_branchs(caplog) -> None:
    assert offsets(V1 % "c") == [[5]]
    assert not caplog.records
    between = 'layers { name: "i" type: INNER_PRODUCT bottom: "c" top: "i" } layers { name: "crop"'
    with pytest.raises(UserError, match=r'"crop" \(Crop\), crop_param.align: .* give the offset'):
        offsets((V1 % "i").replace('layers { name: "crop"', between))


def test_rcfs_auto_crop_is_the_same() -> None:
    text = conv("data", "c", 3, "pad: 6") + layer("AutoCrop", "c data", "y")
    assert offsets(text) == offsets(V1 % "c") == [[5]]


HALF = conv("data", "c", 4, "pad: 4") + layer("Crop", "c data", "half")
SHIFTED = conv("data", "d", 3, "pad: 3") + layer("Crop", "d data", "whole")


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (SHIFTED + HALF, r"would stop it: cannot crop noninteger offset"),
        (SHIFTED + layer("Crop", "d data", "said", "crop_param { offset: 1 }"), "has crop_param"),
        (SHIFTED + conv("data", "s", 3, "stride: 2") + layer("Crop", "data s", "less"), "scale"),
        (SHIFTED + conv("data", "n", 3) + layer("Crop", "n data", "less"), "negative"),
    ],
)  # fmt: skip
def test_what_the_fcn_branch_would_not_take_is_bvlcs(net, why, caplog) -> None:
    """As DSS, whose code has BVLC's Crop and whose nets leave crop_param out."""
    crops = offsets(DATA % (20, 20) + net)
    assert all(each in ([], [1]) for each in crops)
    (record,) = caplog.records
    assert "those of BVLC Caffe" in record.getMessage()
    assert why in record.getMessage()
    assert '"whole" (top "whole"): 2' in record.getMessage()


@pytest.mark.parametrize(
    "net",
    [
        layer("Crop", "data other", "y"),
        HALF,
        conv("data", "c", 3, "pad: 1") + pool("c", "p") + up("p", "u", 4, 2, "pad: 1")
        + layer("Crop", "u data", "y"),
        SHIFTED.replace('top: "whole"', 'top: "whole" crop_param { axis: 2 }'),
    ],
    ids=["two sources", "no such offset", "offset 0", "crop_param without an offset"],
)  # fmt: skip
def test_bvlcs_nets_stay_as_they_are(net, caplog) -> None:
    other = (DATA % (9, 9)).replace('"data"', '"other"')
    assert offsets(DATA % (20, 20) + other + net) == [[]]
    assert not caplog.records


def test_offsets_of_each_axis_and_through_crops() -> None:
    window = "convolution_param { num_output: 1 kernel_h: 3 kernel_w: 5 pad_h: 3 pad_w: 3 }"
    net = layer("Convolution", "data", "c", window) + layer("Crop", "c data", "one")
    net += conv("one", "d", 3, "pad: 4") + layer("Crop", "d data", "two")
    assert offsets(DATA % (20, 20) + net) == [[2, 1], [3, 3]]


@pytest.mark.parametrize("more", ["offset: 3", "axis: 1"])
def test_align_says_it_alone(more) -> None:
    crop = SHIFTED.replace('top: "whole"', f'top: "whole" crop_param {{ align: true {more} }}')
    with pytest.raises(UserError, match="cannot be combined with offset, or an axis but 2"):
        offsets(DATA % (20, 20) + crop)


MAPS = 'layer { name: "data" type: "ImageLabelmapData" top: "data" top: "label" %s } '
LOSS = layer("SigmoidCrossEntropyLoss", "data label", "loss", "%s")
NORM = layer("BatchNorm", "data", "bn", "%s")
GIVEN = DATA % (4, 4)


@pytest.mark.parametrize(
    ("net", "phase", "said"),
    [
        (MAPS % "" + LOSS % "", "TRAIN", r"class_balance: 1 } for HED's"),
        (MAPS % "" + layer("Split", "label", "l") + LOSS.replace("label", "l") % "", "TEST", "HED"),
        (MAPS % "" + LOSS % "loss_param { class_balance: 0 }", "TRAIN", None),
        (MAPS % "image_data_param { normalize: true }" + LOSS % "", "TRAIN", None),  # DSS
        (MAPS.replace("Labelmap", "Gt") % "" + LOSS % "", "TRAIN", None),
        (GIVEN + NORM % "batch_norm_param { scale_bias: true use_global_stats: true }", "TRAIN",
         'use_global_stats of layer "bn" (BatchNorm) is not read, as in NVIDIA'),
        (GIVEN + NORM % "batch_norm_param { bias_filler {} use_global_stats: false }", "TEST",
         "the phase says it"),
        (GIVEN + NORM % "batch_norm_param { bias_filler {} use_global_stats: true }", "TEST", None),
        (GIVEN + NORM % "batch_norm_param { use_global_stats: true eps: 1e-9 }", "TRAIN", None),
        (GIVEN + NORM % "batch_norm_param { scale_bias: true eps: 1e-6 }", "TRAIN", "eps of layer"),
        (GIVEN + NORM % ("batch_norm_param { scale_bias: true } param {} param {} param {} "
                         "param { lr_mult: 2 }"), "TRAIN", "NVIDIA Caffe takes 1"),
    ],
)  # fmt: skip
def test_what_another_caffe_reads_otherwise_is_told(net, phase, said, caplog) -> None:
    with caplog.at_level(logging.WARNING, "osucaffe"):
        warn_of_forks(parse_text(net, NetParameter), phase)
    assert len(caplog.records) == (said is not None)
    assert said is None or said in caplog.text
