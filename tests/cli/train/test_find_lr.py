"""osucaffe train --find_lr: the rate that it proposes, what it leaves alone, when it refuses."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from osucaffe.api.curves import smooth
from osucaffe.cli.train.find_lr import drawn, propose
from osucaffe.solvers.update.rules import RULES

from ..conftest import Cli

TRAIN = "train", "--solver=solver.prototxt"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def proposed(text: str) -> float:
    [rate] = re.findall(r"^base_lr: (\S+)$", text, re.MULTILINE)
    return float(rate)


@pytest.mark.parametrize("kind", RULES)
def test_a_rate_for_each_type_of_solver(ready: Cli, kind: str) -> None:
    momentum = 0.9 if RULES[kind].momentum else 0
    ready.write_solver(f'type: "{kind}"\nmomentum: {momentum}\nwarmup_iter: 5\naverage_loss: 3')
    before = files(ready.folder)
    result = ready.ok(*TRAIN, "--find_lr")
    rate = proposed(result.out)
    after = files(ready.folder)
    page = after.pop("find_lr.html").decode()
    assert after == before
    assert f"proposed: {rate:g}" in page
    assert ">0.01</text>" in page
    assert "diverged" not in result.err
    assert "in place of 0.1" in result.out
    if kind != "AdaDelta":  # it stops when the loss grows
        assert 50 < int(re.findall(r"tried (\d+) ", result.out)[0]) < 200
    # Twenty iterations with it bring more than with a hundredth of it, and than nothing.
    losses = []
    for tried in (rate, rate / 100):
        ready.write_solver(
            f'type: "{kind}"\nmomentum: {momentum}\nbase_lr: {tried}\nlr_policy: "fixed"\n'
            "max_iter: 20\ntest_iter: 25\ntest_interval: 20"
        )
        log = ready.ok(*TRAIN).err
        first, last = map(float, re.findall(r"Test net output #1: loss = (\S+)", log))
        losses.append(last)
    assert losses[0] < min(losses[1], 0.9 * first)


def test_it_begins_from_weights_and_names_the_command(ready: Cli) -> None:
    ready.ok(*TRAIN, "--max_iter=1")
    weights = "--weights=run_iter_1.caffemodel"
    result = ready.ok(*TRAIN, weights, "--find_lr=lr page.html", "--max_iter=60")
    assert result.out.splitlines()[-1] == (
        "osucaffe train --solver solver.prototxt --weights run_iter_1.caffemodel"
    )
    assert (ready.folder / "lr page.html").exists()
    assert "none.caffemodel: cannot read it" in (
        ready.fails(*TRAIN, "--weights=none.caffemodel", "--find_lr").err
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--find_lr=solver.prototxt"], "give a page.html to write"),
        (["--find_lr", "--max_iter=3"], "needs 25 iterations"),
        (["--find_lr", "--best=loss"], "remove --best"),
        (["--find_lr", "--snapshot=auto"], "remove --snapshot"),
        (["--find_lr=no/such/folder.html"], "in a folder that is there"),
    ],
)
def test_options_that_do_not_go_together(ready: Cli, words: list[str], expected: str) -> None:
    before = files(ready.folder)
    assert expected in ready.fails(*TRAIN, *words).err
    assert files(ready.folder) == before


def test_where_there_is_no_rate_to_find(ready: Cli) -> None:
    net = (ready.folder / "net.prototxt").read_text()
    still = 'type: "InnerProduct" param { lr_mult: 0 } param { lr_mult: 0 }'
    tiny = still.replace("lr_mult: 0", "lr_mult: 1e-30")
    lossless = net.replace("SoftmaxWithLoss", "Softmax").replace('"ip" bottom: "label"', '"ip"')
    for text, expected in (
        (net.replace('type: "InnerProduct"', still), "no layer that learns"),
        (net.replace('type: "InnerProduct"', tiny), "the loss falls at none of"),
        (re.sub(r'layer \{\s+name: "accuracy".*?\n\}', "", lossless, flags=re.S), "no loss"),
    ):
        ready.write("net.prototxt", text)
        error = ready.fails(*TRAIN, "--find_lr", "--max_iter=40").err
        assert expected in error
        assert "solver.prototxt" in error


def test_the_rate_is_a_third_of_that_with_the_least_loss() -> None:
    points = [(x / 25 - 7, 2.0 - max(0.0, x / 25 - 3) + max(0.0, x - 125)) for x in range(150)]
    at, _ = min(smooth(points), key=lambda point: point[1])
    assert propose(points) == pytest.approx(10**at / 3, rel=0.05)
    assert -2.5 < at < -2
    assert propose(points[:60]) is None  # it has not fallen yet
    assert propose(drawn([*points, (0.0, math.nan), (0.1, 1e30)])) == propose(drawn(points))
    assert propose(drawn([(0.0, math.nan)])) is None
