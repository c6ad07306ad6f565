"""Loss scaling: what it leaves as it is, what an overflow does, and that it is resumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.solvers import Solver
from osucaffe.solvers.update import loss_scaling

from ..runs import NET, TYPES, assert_same, parameters, solver

SUMMED = """
layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 3 dim: 4 }
  data_filler { type: "constant" value: 2 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" loss_weight: 0.5
  inner_product_param { num_output: 2 } }
"""
"""A net whose loss is no scalar."""


def history(run: Solver) -> list[np.ndarray]:
    return run.optimizer.read_history()


def overflow(run: Solver) -> None:
    """Give a weight a value with which the gradients of the next iterations overflow."""
    blob = run.net.parameters[0].blob
    values = run.backend.read(blob.data)
    values.flat[0] = np.inf
    run.backend.write(blob.data, values)


@pytest.mark.parametrize(("net", "scale"), [(NET, 8), (SUMMED, 4)], ids=["a loss", "a sum"])
def test_the_gradients_are_scaled(net: str, scale: int) -> None:
    plain, scaled = (solver("", net, loss_scale=each) for each in (None, scale))
    for run in plain, scaled:
        run.net.forward()
        run.net.backward()
        assert np.abs(run.backend.read(run.net.arena.diff)).max() > 0
    one, other = (run.backend.read(run.net.arena.diff) for run in (plain, scaled))
    np.testing.assert_array_equal(other, scale * one)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("scale", ["dynamic", 256.0])
def test_an_overflow_skips_the_update(kind: str, scale: str | float) -> None:
    run = solver(f'type: "{kind}" {TYPES[kind]} clip_gradients: 1', loss_scale=scale)
    run.step(2)
    good, kept = parameters(run), history(run)
    overflow(run)
    before = parameters(run)
    run.step(2)
    np.testing.assert_equal(before, parameters(run))
    np.testing.assert_equal(history(run), kept)
    assert run.loss_scale
    assert run.loss_scale.read() == [loss_scaling.START / 4 if scale == "dynamic" else 256, 0, 2]
    for each in run.net.parameters:
        run.backend.write(each.blob.data, good[f"{each.layer}:{each.index}"])
    run.step(1)
    assert run.loss_scale.read()[1:] == [1, 2]
    assert any((value != good[name]).any() for name, value in parameters(run).items())


def test_a_dynamic_scale_grows_after_good_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scaling, "INTERVAL", 3)
    run = solver("", loss_scale="dynamic")
    run.step(3)
    assert run.loss_scale
    assert run.loss_scale.read() == [2 * loss_scaling.START, 0, 0]
    run.step(4)
    assert run.loss_scale.read() == [4 * loss_scaling.START, 1, 0]
    run.loss_scale.write([loss_scaling.MAX_SCALE, 2, 0])
    run.step(1)
    assert run.loss_scale.read() == [loss_scaling.MAX_SCALE, 0, 0]


def test_it_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scaling, "INTERVAL", 3)
    text = f'momentum: 0.9 snapshot_prefix: "{tmp_path}/run"'
    straight = solver(text, loss_scale="dynamic")
    straight.step(8)
    first = solver(text, loss_scale="dynamic")
    first.step(5)
    first.snapshot()
    second = solver(text, loss_scale="dynamic")
    second.restore("auto")
    assert second.loss_scale
    assert first.loss_scale
    assert second.loss_scale.read() == first.loss_scale.read() == [2 * loss_scaling.START, 2, 0]
    second.step(3)
    assert_same(second, straight)
    fixed = solver(text, loss_scale=16)
    fixed.restore("auto")
    assert fixed.loss_scale
    assert fixed.loss_scale.read()[0] == 16


@pytest.mark.parametrize("scale", ["large", "0", "-1", "nan", "inf"])
def test_other_scales_are_refused(scale: str) -> None:
    with pytest.raises(UserError, match=f"--loss_scale {scale}: give"):
        solver("", loss_scale=scale)
