"""Checks that what comes from files steers no terminal, forges no line and begins no formula."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from osucaffe import log
from osucaffe.api.curves import panel
from osucaffe.api.logs import panels_of, parse
from osucaffe.cli import main, output
from osucaffe.cli.reports.parse_log import draw
from osucaffe.cli.reports.report_page import facts

STEERS = "a\x1b[2J\x9b1m\u202eb\r\x7f"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
NET = """layer { name: "in\\033[2J\u202e" type: "Input" top: "x\\033]0;t\\007" input_param { shape {
dim: 1 dim: 2 } } } layer { name: "r\\nI1129" type: "ReLU" bottom: "x\\033]0;t\\007" top: "r" }"""


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_names_steer_no_terminal(option: list[str], tmp_path: Path, capfd) -> None:
    (tmp_path / "n.prototxt").write_text(NET)
    assert main(["summary", "--model", str(tmp_path / "n.prototxt"), *option]) == 0
    told = capfd.readouterr()
    assert "r\\nI1129" in told.out
    assert not CONTROL.search(told.out + told.err)


def test_json_has_escapes_of_json(capfd) -> None:
    output.print_json({"a": STEERS + "\udcef\U000e0001é"})
    told = capfd.readouterr().out
    assert not CONTROL.search(told)
    assert json.loads(told) == {"a": STEERS + "\udcef\U000e0001é"}
    assert "é" in told


def test_a_record_of_the_log_is_one_line(capsys) -> None:
    log.start()
    logging.getLogger("osucaffe").info("  Train net output #0: %s = %g", f"{STEERS}\nI1129", 1.5)
    [line] = capsys.readouterr().err.splitlines()
    assert not CONTROL.search(line)
    assert line.endswith(r"\r\x7f\nI1129 = 1.5")


def test_cells_begin_no_formula() -> None:
    rows = [["=1+1", "+a", "-a", "@a", "-1.5", -2, "+3", "plain", 'a,"b', "a\nb\tc", STEERS]]
    text = output.csv_text(rows)
    assert text.startswith("""'=1+1,'+a,'-a,'@a,-1.5,-2,+3,plain,"a,""b",a\\nb\\tc,a\\x1b""")
    assert not CONTROL.search(text)


def log_of(*outputs: str) -> list[str]:
    head = "I1129 03:00:00.000000  4711 solver.py:1] Iteration 0, lr = 0.01"
    return [head, *(f"I1129 03:00:00.000000  4711 report.py:1]     {each}" for each in outputs)]


def test_a_plot_is_xml(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = parse(
        log_of(f"Train net output #0: {STEERS}$\\frac{{$ = 1.5", "Test net output #0: < = 2")
    )
    draw(found, str(tmp_path / "a.svg"), title=STEERS)
    ElementTree.parse(tmp_path / "a.svg")
    assert not CONTROL.search((tmp_path / "a.svg").read_text().replace("\n", ""))


def test_a_page_has_none() -> None:
    assert facts([("data", STEERS + "<b>")]).count("\\x1b") == 1
    assert not CONTROL.search(facts([("data", STEERS)]))


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("Train net output #0: a = b = 1.2 (* 1 = 1.2 loss)", {"a = b": 1.2}),
        ("Train net output #0: a = 5 = 1.2", {"a = 5": 1.2}),
        ("Train net output #0: a = 1.2 (* 1 = 1.2 loss)", {"a": 1.2}),
        ("Train net output #0: a = 11.#INF", {"a": float("inf")}),
        ("Train net output #0: a = -1.#INF", {"a": float("-inf")}),
    ],
)
def test_an_output_of_any_name(text: str, row: dict[str, float]) -> None:
    [found] = parse(log_of(text)).train
    assert {
        name: found[name] for name in found if name not in ("NumIters", "Seconds", "LearningRate")
    } == row


@pytest.mark.parametrize("rates", [["1e308", "-1e308"], ["5e-324", "1e-323"], ["1e-30", "2e-30"],
                                   ["1", "1.0000000000000002"], ["inf", "3e38"]])  # fmt: skip
def test_a_curve_of_any_numbers(rates: list[str]) -> None:
    lines = [
        line.replace("Iteration 0", f"Iteration {number}").replace("0.01", rate)
        for number, rate in enumerate(rates)
        for line in log_of(f"Train net output #0: a = {rate}")
    ]
    assert all(panel(*each) or "inf" in rates[0] + each[0] or "e308" in rates[0]
               for each in panels_of(parse(lines)).items() if each[1])  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ["I9999 03:00:00.000000  4711 solver.py:1] Iteration 0, lr = 0.01",
     "I1129 03:00:00.000000  4711 solver.py:1] Iteration 0, lr = 0.01)",
     "I1129 03:00:00.000000  4711 solver.py:1] Iteration " + "9" * 5000,
     "I1129 03:00:00.000000  4711 solver.py:1] Iteration 1, lr = " + "1" * 300_000 + "x",
     "I1129 03:00:00.000000  4711 solver.py:1] Train net output #0: a" + " = 1 (*" * 40_000]
)  # fmt: skip
def test_a_damaged_line_is_none(line: str) -> None:
    found = parse([line, *log_of("Train net output #0: a = 1.2")])
    assert [row["a"] for row in found.train] == [1.2]
