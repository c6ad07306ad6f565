"""Tests of the page about a training run: what it says, and that it fetches nothing."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from osucaffe.cli import report_page
from osucaffe.cli.svg import line_chart, ticks

from .conftest import Cli

OPEN = ("meta", "img", "br", "path", "circle", "polyline")


class Page(HTMLParser):
    """Checks that tags are closed in order, and gathers what a page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.names: list[str] = []
        self.feed(text)
        assert not self.tags

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in OPEN:
            self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in OPEN:
            assert self.tags.pop() == tag


def test_the_page_of_a_run(cli: Cli) -> None:
    cli.write_net()
    cli.write_solver("test_iter: 25")
    cli.write("names.txt", "".join(f"<digit {n}>\n" for n in range(10)))
    words = ["--solver", "solver.prototxt", "--log_dir", "logs", "--best", "accuracy"]
    assert cli("train", *words, "--quiet").code == 0
    done = cli("report", "solver.prototxt", "--log=logs", "--labels=names.txt", "--shown=3")
    assert (done.code, done.out) == (0, "wrote report.html\n"), done.err
    text = (cli.folder / "report.html").read_text()
    page = Page(text)
    assert all(each.startswith("data:image/jpeg;base64,") for each in page.fetched)
    assert page.names.count("img") == 6
    assert page.names.count("svg") == 3
    assert not {"script", "link", "iframe"} & {*page.names}
    assert not re.search(r"url\(|@import", text)
    best = json.loads((cli.folder / "run_best.json").read_text())
    assert f"of 200 records are right: {best['value']:.2%}" in text
    assert "&lt;digit 7&gt;" in text
    assert "<digit" not in text
    for heading in ("Curves", "The worst predictions", "The best predictions", "Settings"):
        assert f"<h2>{heading}</h2>" in text
    assert "snapshot_prefix: &quot;run&quot;" in text


def test_a_run_without_a_model(cli: Cli) -> None:
    cli.write_net()
    cli.write_solver()
    done = cli("report", "solver.prototxt")
    assert done.code == 1
    assert "there is no model of this run (run_best.caffemodel" in done.err


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 60, [0, 10, 20, 30, 40, 50, 60]), (0.12, 0.81, [0, 0.2, 0.4, 0.6, 0.8, 1]), (3, 3, None)],
)
def test_ticks_are_round(low: float, high: float, expected: list[float] | None) -> None:
    found = ticks(low, high)
    assert found[0] <= low <= high <= found[-1]
    assert expected is None or found == expected


def test_what_is_not_finite_is_not_drawn() -> None:
    chart = line_chart({"loss": [(0, 1.0), (1, float("nan")), (2, float("inf"))]}, "Loss")
    assert chart.count("<circle") == 1
    assert line_chart({"loss": []}, "Loss") == ""


def test_many_classes_are_a_list() -> None:
    confusion = np.eye(100, dtype=int) * 5
    confusion[3, 7] = 2
    html = report_page.matrix(confusion, [f"c{n}" for n in range(100)])
    assert re.findall(r"<td>(\w+)</td>", html) == ["c3", "c7", "2"]
