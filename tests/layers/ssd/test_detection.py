"""SSD's layers: what their figures do not show."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError

from ..nets import build, inputs
from ..test_fixtures import FIXTURES, Fixture

MULTIBOX = [path for path in FIXTURES if "ssd_mbox" in path.stem]
VARIANTS = {
    "": "",
    "squares": "loc_loss_type: L2",
    "sigmoids": "conf_loss_type: LOGISTIC",
    "hard": "mining_type: HARD_EXAMPLE sample_size: 7",
    "hard, thinned": "mining_type: HARD_EXAMPLE nms_param { nms_threshold: 0.3 top_k: 9 }",
    "corners": "code_type: CORNER_SIZE encode_variance_in_target: true",
    "bounded": "bp_inside: true use_prior_for_matching: false",
    "agnostic": "map_object_to_agnostic: true loc_weight: 0.3",
}


@pytest.mark.parametrize("path", MULTIBOX, ids=lambda path: path.stem)
@pytest.mark.parametrize("variant", VARIANTS)
def test_multibox_gradients_are_the_slope_of_the_loss(path: Path, variant: str) -> None:
    fixture, backend = Fixture(path), Cpu(dtype="float64")
    if variant.startswith("hard") and "share_location: false" in fixture.text:
        pytest.skip("mining is for shared boxes")
    text = fixture.text.replace("multibox_loss_param {", "multibox_loss_param { " + variant_of(
        variant, fixture.text))  # fmt: skip
    net = build(text, backend, phase="TRAIN", inspectable=True)
    values = {name: array.astype(np.float64) for name, array in fixture.kind("in").items()}

    def loss() -> float:
        for name, array in values.items():
            net.write(name, array)
        for layer in net.layers:
            for blob in layer.parameters:
                backend.write(blob.data, 1.0)
        net.forward()
        return net.loss()

    assert np.isfinite(loss())
    net.backward()
    generator, step = np.random.default_rng(3), 1e-6
    for name in "loc", "conf":
        gradient = backend.read(net.blobs[f"{name}_s"].diff)
        direction = generator.standard_normal(gradient.shape)
        whole = values[name]
        values[name] = whole + step * direction
        above = loss()
        values[name] = whole - step * direction
        slope = (above - loss()) / (2 * step)
        values[name] = whole
        if variant == "corners" and name == "loc":  # the fork does not divide by it in backward
            variances = values["pri"][0, 1].reshape(-1, 1, 4)
            direction = direction.reshape(2, len(variances), -1, 4) / variances
            direction = direction.reshape(gradient.shape)
        assert (gradient * direction).sum() == pytest.approx(slope, rel=1e-5, abs=1e-7)


def variant_of(variant: str, text: str) -> str:
    """The fields of a variant that the text does not give (protobuf takes none twice)."""
    fields = VARIANTS[variant].split(" ") if variant else []
    if "{" in fields:
        return VARIANTS[variant] if "mining_type" not in text else ""
    pairs = zip(fields[::2], fields[1::2], strict=True)
    return " ".join(f"{name} {value}" for name, value in pairs if name not in text) + " "


@pytest.mark.parametrize("mining", ["MAX_NEGATIVE", "HARD_EXAMPLE"])
def test_an_image_without_truth_gives_no_negatives(mining: str) -> None:
    fixture = Fixture(next(path for path in MULTIBOX if path.stem.endswith("mbox8")))
    text = fixture.text.replace("MAX_NEGATIVE", mining)
    net = build(text, Cpu(), phase="TRAIN", inspectable=True)
    for name, values in fixture.kind("in").items():
        net.write(name, values)
    for layer in net.layers:
        for blob in layer.parameters:
            net.backend.write(blob.data, 1.0)
    net.forward()
    assert net.loss() == 0


LOCATION = {"loc": (1, 8), "conf": (1, 6), "pri": (1, 2, 8)}


def output(settings: str) -> str:
    return inputs(LOCATION) + (
        'layer { type: "DetectionOutput" bottom: "loc" bottom: "conf" bottom: "pri" top: "y" '
        f"detection_output_param {{ num_classes: 3 {settings} }} }}"
    )


def test_the_top_has_the_rows_that_there_are() -> None:
    net = build(output("nms_param { nms_threshold: 0.5 } confidence_threshold: 0.5"), Cpu())
    priors = [[0, 0, 0.5, 0.5, 0.5, 0.5, 1, 1], [0.1] * 8]
    net.write("pri", np.array([priors]))
    for scores, rows in (
        ([0, 0.9, 0, 0, 0.8, 0.6], [[0, 1, 0.9, 0, 0, 0.5, 0.5], [0, 1, 0.8, 0.5, 0.5, 1, 1],
                                    [0, 2, 0.6, 0.5, 0.5, 1, 1]]),
        ([0, 0, 0.7, 0, 0, 0], [[0, 2, 0.7, 0, 0, 0.5, 0.5]]),
        ([0] * 6, [[0, -1, -1, -1, -1, -1, -1]]),
    ):  # fmt: skip
        net.write("conf", np.array([scores]))
        net.forward()
        np.testing.assert_allclose(net.read("y")[0, 0], rows, rtol=1e-6)
        assert net.blobs["y"].shape == (1, 1, 6, 7)


def test_bad_settings_name_the_layer() -> None:
    for text, words in (
        (output("share_location: false"), r"bottom\[0\].*8.*3"),
        (output("nms_param { eta: 0 }"), "eta"),
        (inputs({"x": (1, 4, 2, 2), "d": (1, 3, 8, 8)}) + 'layer { name: "p" type: "PriorBox" '
         'bottom: "x" bottom: "d" top: "y" prior_box_param { max_size: 3 } }', "min_size"),
        (inputs({"x": (1, 4)}) + 'layer { name: "p" type: "Permute" bottom: "x" top: "y" '
         "permute_param { order: 1 order: 1 } }", "order"),
        (inputs({"x": (1, 4), "y": (1, 4), "w": (1, 3)}) + 'layer { name: "l" type: "SmoothL1Loss" '
         'bottom: "x" bottom: "y" bottom: "w" }', "has shape"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            build(text, Cpu())


def test_priors_follow_the_shape_of_the_image() -> None:
    text = inputs({"x": (1, 4, 2, 2), "d": (1, 3, 8, 8)}) + (
        'layer { name: "p" type: "PriorBox" bottom: "x" bottom: "d" top: "y" '
        "prior_box_param { min_size: 4 } }"
    )
    net = build(text, Cpu(), inspectable=True)
    net.forward()
    small = net.read("y")
    net.reshape({"d": (1, 3, 16, 16), "x": (1, 4, 3, 2)})
    net.forward()
    wanted = build(text.replace("dim: 8", "dim: 16").replace(
        "dim: 4 dim: 2 dim: 2", "dim: 4 dim: 3 dim: 2"), Cpu())  # fmt: skip
    wanted.forward()
    assert net.read("y").shape != small.shape
    np.testing.assert_array_equal(net.read("y"), wanted.read("y"))


def test_what_is_not_written_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "osucaffe"):
        build(output('save_output_param { output_directory: "results" }'), Cpu())
    assert "save_output_param" in caplog.text


def test_scripts_see_the_rows_that_there_are(tmp_path: Path) -> None:
    from osucaffe import pycaffe

    file = tmp_path / "net.prototxt"
    file.write_text(output("confidence_threshold: 0.5"))
    net = pycaffe.Net(str(file), pycaffe.TEST)
    net.blobs["pri"].data[...] = [[[0, 0, 0.5, 0.5, 0.5, 0.5, 1, 1], [0.1] * 8]]
    net.blobs["conf"].data[...] = [[0, 0.9, 0, 0, 0.8, 0.6]]
    found = net.forward()["y"]
    assert found.shape == net.blobs["y"].data.shape == (1, 1, 3, 7) == net.blobs["y"].shape
    np.testing.assert_allclose(found[0, 0, :, 2], [0.9, 0.8, 0.6])
