"""Tests of the report of a training run: what its page holds, and that it needs nothing else."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from osucaffe.api.curves import panel
from osucaffe.api.logs import Log, joined, parse
from osucaffe.backends.cpu import Cpu
from osucaffe.cli.reports.report_page import cards, page, results
from osucaffe.cli.score.predictions import (
    Prediction,
    Predictions,
    Scoring,
    _first,
    predict,
    scored_blobs,
)
from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import parse_datum, pixels
from osucaffe.net import Net
from osucaffe.proto import NetParameter, parse_text, write_mean
from tests.cli.conftest import Cli


class Tags(HTMLParser):
    """Collects what a page would load, and checks that its tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base")
        self.loaded += [
            value or "" for name, value in attrs if name in ("src", "href", "srcset", "xlink:href")
        ]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("path", "polyline", "circle")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_alone(text: str) -> Tags:
    """The page needs nothing beside it."""
    tags = Tags(text)
    assert not tags.open
    assert all(each.startswith("data:image/png;base64,") for each in tags.loaded)
    assert not re.search(r"https?:|url\(|@import|//\w", re.sub('base64,[^"]*', "", text))
    return tags


def test_a_report_of_a_run(cli: Cli) -> None:
    cli.write_net()
    cli.write_solver()
    command = "train", "--solver=solver.prototxt", "--log_dir=log", "--best=accuracy"
    cli.ok(*command)
    names = [f"<{digit}>" for digit in range(10)]
    cli.write("names.txt", "\n".join(names))
    result = cli.ok("report", "solver.prototxt", "--labels=names.txt", "--passes=1", "--pictures=3")
    assert result.out == "wrote report.html\n"
    text = (cli.folder / "report.html").read_text()
    tags = check_alone(text)
    for expected in ("test accuracy", "test loss", "Learning rate", "&lt;7&gt;", "InnerProduct"):
        assert expected in text
    assert "max_iter: 10" in text
    # As `osucaffe test` scores the same records.
    scored = cli("test", "--model=net.prototxt", "--weights=run_best.caffemodel", "--iterations=2")
    accuracy = float(re.findall(r"\] accuracy = (\S+)", scored.err)[0])
    right, total = re.findall(r"correct: (\d+) of (\d+) records", text)[0]
    assert int(right) / int(total) == pytest.approx(accuracy, abs=1e-6)
    assert int(total) == 16
    pictures = [Image.open(io.BytesIO(base64.b64decode(each[22:]))) for each in tags.loaded]
    assert 3 < len(pictures) <= 6
    digits = [np.asarray(each) for each in pictures]
    assert all(each.shape == (28, 28) and each.max() > 200 for each in digits)  # white on black


def test_without_a_model_and_a_log_the_rest_is_there(cli: Cli) -> None:
    cli.write_net()
    cli.write_solver()
    result = cli.ok("report", ".", "--passes=0", "--out=page.html")
    assert "no curves: give --log" in result.err
    assert "no model yet, so no predictions" in result.err
    text = (cli.folder / "page.html").read_text()
    check_alone(text)
    assert re.findall(r"<h2>(.*?)</h2>", text) == ["Run", "Solver"]
    result = cli.fails("report", ".", "--log=nowhere")
    assert "osucaffe: --log nowhere: no log found" in result.err


def test_what_confuses_many_classes_is_listed() -> None:
    confusion = np.eye(30, dtype=np.int64) * 5
    confusion[3, 4], confusion[7, 8] = 2, 9
    text = results(Predictions(confusion), [f"class {number}" for number in range(30)])
    assert "correct: 150 of 161 records" in text
    assert text.index("<td>class 7</td><td>class 8</td><td>9</td>") < text.index("class 3")
    few = results(Predictions(confusion[:5, :5]), list("abcde"))
    assert few.count("<tr>") == 6
    assert "rgba(var(--mark),0.24)" in few  # 2 of 7


def test_a_card_says_what_was_taken_for_what() -> None:
    text = cards([Prediction(0, 1, 0.9, 0.05)], ["cat", "<dog>"])
    assert "<b>cat</b> 5.0%" in text
    assert "predicted: <b>&lt;dog&gt;</b> 90.0%" in text
    whole = page("a & b", "", [("none", ""), ("one", text)])
    check_alone(whole)
    usual, _, narrow = whole.partition("@media")  # of rules for the same thing the last one counts
    assert ".card img {" in usual
    assert ".card img {" in narrow
    assert ".card {" not in narrow


def test_curves_lie_within_their_panel() -> None:
    series = {"train loss": [(0.0, 2.5), (10.0, float("nan")), (50.0, 0.013)], "none": []}
    text = panel("Loss", series)
    [corners] = re.findall(r'points="([^"]*)"', text)
    found = [tuple(map(float, each.split(","))) for each in corners.split()]
    assert len(found) == 2
    assert all(56 <= x <= 444 and 12 <= y <= 220 for x, y in found)
    assert found[0][1] < found[1][1]  # the higher the smaller
    assert panel("Nothing", {"a": [(0.0, float("inf"))]}) == ""
    assert panel("One point", {"a": [(3.0, 0.0)]})
    zigzag = panel("Loss", {"train loss": [(float(x), float(x % 2)) for x in range(60)]})
    raw, smooth = (
        [float(pair.split(",")[1]) for pair in corners.split()]
        for corners in re.findall(r'points="([^"]*)"', zigzag)
    )
    assert np.ptp(smooth) < np.ptp(raw) / 2


def test_the_log_of_a_resumed_run_is_whole(cli: Cli) -> None:
    cli.write_net()
    cli.write_solver("snapshot: 4")
    cli.ok("train", "--solver=solver.prototxt", "--log_dir=log", "--max_iter=9")
    again = ("train", "--solver=solver.prototxt", "--log_dir=log")
    cli.ok(*again, "--snapshot=run_iter_4.solverstate", OMP_NUM_THREADS="1")  # another process
    logs = sorted((cli.folder / "log").glob("*.log.INFO.*"), key=lambda path: path.stat().st_mtime)
    assert len(logs) == 2
    run = joined(parse(log.read_text().splitlines()) for log in logs)
    assert [row["NumIters"] for row in run.train] == [0, 2, 4, 6, 8]
    assert [row["NumIters"] for row in run.tests[0]] == [0, 5, 10]
    begun = {"NumIters": 0.0, "loss": 1.0}
    anew = joined([run, Log([begun], seconds=2, commands=["again"])])
    assert (anew.train, anew.seconds, anew.commands) == ([begun], 2, ["again"])
    cli.ok("report", ".", "--log=log", "--passes=0")
    text = (cli.folder / "report.html").read_text()
    assert run.began in text
    check_alone(text)


def test_the_best_are_of_all_classes() -> None:
    found = [Prediction(at % 3, at % 3, 1 - at / 100, 1 - at / 100) for at in range(9)]
    assert [one.label for one in _first(found, -1, 4, 1)] == [0, 1, 2]
    assert [one.of_label for one in _first(found, 1, 2, 2)] == pytest.approx([0.92, 0.93])


@pytest.mark.parametrize("mean", ["values", "image"])
def test_pictures_are_as_they_were_before_mean_and_scale(
    mean: str, fixtures: Path, tmp_path: Path
) -> None:
    source = fixtures / "formats" / "raw6_lmdb"
    records = [pixels(parse_datum(value)) for _, value in open_database(source).read(0, 6)]
    extents = records[0].shape
    write_mean(tmp_path / "mean", np.arange(np.prod(extents)).reshape(extents) % 99)
    told = {
        "values": "mean_value: 10 mean_value: 90 mean_value: 200",
        "image": f'mean_file: "{tmp_path / "mean"}"',
    }[mean]
    crop = min(extents[1:]) - 3
    text = f"""
        layer {{ name: "data" type: "Data" top: "data" top: "label"
          transform_param {{ scale: 0.5 crop_size: {crop} {told} }}
          data_param {{ source: "{source}" batch_size: 6 }} }}
        layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
          inner_product_param {{ num_output: 9 }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}"""
    net = Net(
        parse_text(text, NetParameter), phase="TEST", backend=Cpu(), inspectable=True,
        gradients=False,
    )  # fmt: skip
    found = predict(net, Scoring(net, scored_blobs(net.param)), 1, 6)
    assert found.confusion.sum() == 6
    top, left = ((extent - crop) // 2 for extent in extents[1:])
    own = {  # the middle of the records themselves, red first
        each[::-1, top : top + crop, left : left + crop].transpose(1, 2, 0).tobytes()
        for each in records
    }
    shown = [Image.open(io.BytesIO(base64.b64decode(each.picture))) for each in found.worst]
    shown += [Image.open(io.BytesIO(base64.b64decode(each.picture))) for each in found.best]
    assert {each.tobytes() for each in shown} == own
