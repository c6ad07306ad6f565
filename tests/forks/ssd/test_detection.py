"""SSD's layers: what they find, in shares of the image or (Cascade R-CNN's form) in pixels."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from tests.layers.nets import build, inputs, one_layer, refuse
from tests.layers.test_fixtures import FIXTURES, Fixture
from tests.layers.test_values import run

random = np.random.default_rng(37)

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


@pytest.mark.parametrize("kind", ["PriorBoxClustered", "PriorBox"])
def test_priors_of_listed_sizes(kind: str) -> None:
    sizes, variance = [(9.4, 15), (25.1, 39.6)], [0.1, 0.1, 0.2, 0.2]
    listed = " ".join(f"width: {width} height: {height}" for width, height in sizes)
    text = f"""prior_box_param {{ clip: true step: 16 offset: 0.5 {listed}
        {" ".join(f"variance: {each}" for each in variance)} }}"""
    shapes = (1, 4, 2, 3), (1, 3, 40, 60)
    found = run(kind, [np.zeros(shape) for shape in shapes], text)
    wanted = []
    for row in range(2):
        for column in range(3):
            for width, height in sizes:
                x, y = (column + 0.5) * 16, (row + 0.5) * 16
                box = [(x - width / 2) / 60, (y - height / 2) / 40]
                box += [(x + width / 2) / 60, (y + height / 2) / 40]
                wanted.append([min(1, max(0, each)) for each in box])
    np.testing.assert_allclose(found[0, 0], np.ravel(wanted), rtol=1e-6)
    np.testing.assert_allclose(found[0, 1], np.tile(variance, 12), rtol=1e-6)
    text = f'type: "{kind}" top: "y" prior_box_param {{{{ {{}} }}}}'
    refuse(text.format("width: 3"), shapes, "width: and height are given 1 and 0 times")
    refuse(text.format("width: 3 height: 0"), shapes, "width: and height must be above 0")
    both = "width: 3 height: 4 min_size: 5"
    refuse(text.format(both), shapes, "min_size: give either it, or width and height")
    if kind == "PriorBoxClustered":
        refuse(text.format("min_size: 3"), shapes, "prior_box_param.width: is missing: give the")


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


@pytest.mark.parametrize("difficult", [True, False])
def test_true_boxes_in_pixels(difficult: bool, tmp_path) -> None:
    """In images as large as the file says, one after the other."""
    sizes = tmp_path / "sizes.txt"
    sizes.write_text("a 80 60\nb 240 120\n")
    text = (
        'type: "DetectionEvaluate" top: "y" detection_evaluate_param { num_classes: 3 '
        f"overlap_threshold: 0.5 evaluate_difficult_gt: {str(difficult).lower()} name_size_file: "
        f'"{sizes}" }}'
    )
    found = np.array([
        [0, -1, -1, -1, -1, -1, -1], [0, 1, 1, 20, 20, 1, 0.6], [0, 2, 2, 21, 21, 1, 0.9],
        [0, 50, 50, 60, 60, 1, 0.5], [0, 30, 5, 33, 8, 2, 0.8],
    ])  # fmt: skip
    ground_truth = np.array([
        [0, 1, 1, 20, 20, 1, 0, 0], [0, 50, 50, 60, 60, 1, 0, 1], [0, 40, 5, 43, 8, 2, 0, 0],
        [-1] * 8,
    ])  # fmt: skip
    net = one_layer(text, {"d": found, "t": ground_truth, "s": np.array([[80, 60]])})
    odd = [1, 0] if difficult else [0, 0]
    wanted = [
        [-1, 1, 1 + difficult, -1, -1], [-1, 2, 1, -1, -1], [0, 1, 0.9, 1, 0], [0, 1, 0.6, 0, 1],
        [0, 1, 0.5, *odd], [0, 2, 0.8, 0, 1],
    ]  # fmt: skip
    np.testing.assert_allclose(net.read("y")[0, 0], wanted, rtol=1e-6)
    net.forward()  # as if in an image of twice the width and three times the height
    np.testing.assert_allclose(net.read("y")[0, 0], wanted, rtol=1e-6)


def test_sizes_count_where_they_are_small(caplog: pytest.LogCaptureFixture, tmp_path) -> None:
    """A box counts its last pixel: 3 x 3 pixels of 4 x 4 are 0.56, of the double 5 x 5 of 7 x 7."""
    sizes = tmp_path / "sizes.txt"
    given = {
        "d": np.array([[0, 0, 0, 2, 2, 1, 0.5]]),
        "t": np.array([[0, 0, 0, 3, 3, 1, 0, 0]]),
        "s": np.array([[10, 10]]),
    }
    text = (
        'type: "DetectionEvaluate" top: "y" detection_evaluate_param { num_classes: 2 '
        f'overlap_threshold: 0.52 name_size_file: "{sizes}" }}'
    )
    assert one_layer(text, given).read("y")[0, 0, 1].tolist() == [0, 1, 0.5, 1, 0]
    assert "boxes are compared as they are in the net's input" in caplog.text
    sizes.write_text("a 20 20\n")  # 25 / 49
    assert one_layer(text, given).read("y")[0, 0, 1].tolist() == [0, 1, 0.5, 0, 1]
