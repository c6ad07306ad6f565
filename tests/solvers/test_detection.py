"""Average precision: its definitions, and where the solver and `test` log it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import NetParameter, parse_text
from osucaffe.solvers.detection import VERSIONS, average_precisions, mean_average_precision

from .runs import solver

# Label 1: three objects; by score true, false, true, true. Label 2: none found. Label 3: no truth.
ROWS = np.array([
    [-1, 1, 3, -1, -1], [-1, 2, 1, -1, -1], [-1, 3, 0, -1, -1], [-1, -1, -1, -1, -1],
    [0, 1, 0.9, 1, 0], [0, 1, 0.5, 1, 0], [1, 1, 0.8, 0, 1], [1, 1, 0.4, 1, 0],
    [1, 3, 0.9, 0, 1], [0, 1, 0.95, 0, 0],
])  # fmt: skip


def test_definitions_of_average_precision() -> None:
    third = 1 / 3
    wanted = {
        "11point": (4 * 1 + 7 * 0.75) / 11,
        "Integral": third * 1 + third * 2 / 3 + third * 0.75,
        "MaxIntegral": third * 1 + third * 0.75 + third * 0.75,
    }
    assert set(wanted) == set(VERSIONS)
    for version, value in wanted.items():
        found = average_precisions(ROWS, version)
        assert found == {1: pytest.approx(value), 2: 0}
        assert mean_average_precision(ROWS, version) == pytest.approx(value / 2)
        assert mean_average_precision(ROWS[2:4], version) == 0


NET = """
layer { name: "in" type: "DummyData" top: "x" dummy_data_param { shape { dim: 1 dim: 2 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"
        inner_product_param { num_output: 1 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "ip" top: "loss"
        include { phase: TRAIN } }
layer { name: "det" type: "DummyData" top: "det" include { phase: TEST } dummy_data_param {
        shape { dim: 1 dim: 1 dim: 3 dim: 7 } data_filler { value: 1 } } }
layer { name: "truth" type: "DummyData" top: "truth" include { phase: TEST } dummy_data_param {
        shape { dim: 1 dim: 1 dim: 2 dim: 8 } data_filler { value: 1 } } }
layer { name: "eval" type: "DetectionEvaluate" bottom: "det" bottom: "truth" top: "eval"
        include { phase: TEST } detection_evaluate_param { num_classes: 3 overlap_threshold: 0 } }
"""


def test_the_solver_logs_the_mean_average_precision(caplog: pytest.LogCaptureFixture) -> None:
    text = 'test_iter: 2 test_interval: 1 eval_type: "detection" ap_version: "11point" max_iter: 1'
    with caplog.at_level(logging.INFO, "osucaffe"):
        solver(text, NET).step(1)
    # In each batch one box is true, and the first: a quarter of the truth is found at a precision
    # of 1, half of it at one half.
    assert f"eval = {4.5 / 11:g}" in caplog.text


def test_bad_settings_are_told() -> None:
    tested = "test_iter: 1 test_interval: 1 "
    for settings, net, words in (
        ('eval_type: "detecting"', NET, "eval_type"),
        ('ap_version: "12point"', NET, "ap_version"),
        (
            'eval_type: "detection"',
            NET[: NET.index('layer { name: "eval"')],
            "no DetectionEvaluate",
        ),
    ):
        with pytest.raises(UserError, match=words):
            solver(tested + settings, net)


def test_test_logs_all_definitions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    from osucaffe.cli import main
    from osucaffe.proto import write_weights

    model, weights = tmp_path / "net.prototxt", tmp_path / "weights.caffemodel"
    model.write_text(NET)
    write_weights(weights, parse_text('layer { name: "ip" type: "InnerProduct" blobs { shape { '
                                      "dim: 1 dim: 2 } data: 1 data: 1 } blobs { shape { dim: 1 } "
                                      "data: 0 } }", NetParameter))  # fmt: skip
    with caplog.at_level(logging.INFO, "osucaffe"):
        main(["test", "--model", str(model), "--weights", str(weights), "--iterations", "2",
              "--detection"])  # fmt: skip
    said = caplog.text + capsys.readouterr().err
    assert "eval, label 1: AP 11point 0.4091, MaxIntegral 0.3750, Integral 0.3750" in said
    assert "eval: mAP 11point 0.4091, MaxIntegral 0.3750, Integral 0.3750" in said


@pytest.mark.parametrize("kind", ["VOC", "COCO"])
def test_results_are_written(tmp_path: Path, kind: str) -> None:
    from osucaffe.forks.ssd.detection_results import gather
    from osucaffe.forks.ssd.make_annotated import write_label_map

    write_label_map(tmp_path / "map", [("7", 1), ("dog", 2)])
    (tmp_path / "sizes").write_text("11 100 200\n12 50 80\n13 50 80\n")
    text = (
        'layer { type: "Input" top: "loc" top: "conf" top: "pri" input_param { '
        "shape { dim: 2 dim: 4 } shape { dim: 2 dim: 3 } shape { dim: 1 dim: 2 dim: 4 } } } "
        'layer { type: "DetectionOutput" bottom: "loc" bottom: "conf" bottom: "pri" top: "found" '
        "detection_output_param { num_classes: 3 confidence_threshold: 0.5 save_output_param { "
        f'output_directory: "x" output_name_prefix: "det_" output_format: "{kind}" '
        f'label_map_file: "{tmp_path / "map"}" name_size_file: "{tmp_path / "sizes"}" }} }} }}'
    )
    net = Net(parse_text(text, NetParameter), phase="TEST", backend=Cpu())
    net.write("pri", np.array([[[-0.5, 0.25, 0.5, 0.75], [1, 1, 1, 1]]]))
    [results] = gather(net, str(tmp_path / "out"))
    for scores in ([[0, 0.9, 0], [0, 0, 0.75]], [[0, 0.6, 0], [0, 0.7, 0]]):
        net.write("conf", np.array(scores))
        net.forward()
        results.add(results.read(net))  # the last image has no line in the file of sizes
    files = results.write()
    if kind == "VOC":
        assert [file.name for file in files] == ["det_7.txt", "det_dog.txt"]
        assert files[0].read_text() == "11 0.9 0 25 100 75\n13 0.6 0 12 40 37\n"
        assert files[1].read_text() == "12 0.75 0 12 40 37\n"
    else:
        rows = json.loads(files[0].read_text())
        assert rows[0] == {"image_id": 11, "category_id": 7, "bbox": [0, 25, 100, 50],
                           "score": pytest.approx(0.9)}  # fmt: skip
        assert [row["category_id"] for row in rows] == [7, "dog", 7]
