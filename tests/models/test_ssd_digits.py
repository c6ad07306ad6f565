"""The detector of examples/ssd_digits: its canvases, its nets, and a few steps of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.data.databases.database import write_database
from osucaffe.data.databases.datum import pixels
from osucaffe.data.sets.mnist import load
from osucaffe.forks.ssd.annotated import parse_annotated
from osucaffe.net import Net
from osucaffe.proto import read_net, read_solver
from osucaffe.solvers import Solver

from .scripts import load_script

FOLDER = Path(__file__).parents[2] / "examples" / "ssd_digits"


@pytest.fixture(scope="module")
def canvases() -> list[tuple[bytes, bytes]]:
    return list(load_script(FOLDER / "make_data.py").records(load("packaged").test, 8, 1))


def test_boxes_hold_their_digits(canvases: list[tuple[bytes, bytes]]) -> None:
    for _, value in canvases:
        datum, truth = parse_annotated(value)
        image = pixels(datum)[0]
        assert image.shape == (80, 80)
        assert 1 <= len(truth.labels) <= 4
        outside = np.ones_like(image, bool)
        for left, top, right, bottom in np.rint(truth.boxes * 80).astype(int):
            part = image[top:bottom, left:right]
            assert min(part[0].max(), part[-1].max(), part[:, 0].max(), part[:, -1].max()) > 30
            assert part.max() > 100
            outside[top:bottom, left:right] = False
        assert image[outside].max() < 48


def train(backend: Any, records: list[tuple[bytes, bytes]], folder: Path) -> list[float]:
    """The losses of some iterations, and the mean average precision behind them."""
    param = read_solver(FOLDER / "solver.prototxt")
    param.net_param.CopyFrom(read_net(FOLDER / "train_val.prototxt"))
    for layer in param.net_param.layer[:2]:
        layer.data_param.source = str(folder / "lmdb")
        layer.data_param.batch_size = 4
    write_database(folder / "lmdb", iter(records))
    param.ClearField("net")
    param.test_iter[0], param.max_iter, param.snapshot, param.test_interval = 2, 6, 0, 6
    param.snapshot_after_train = False
    solver = Solver(param, backend, file="solver.prototxt")
    losses = []
    for _ in range(6):
        solver.step(1)
        losses.append(solver.net.loss())
    [result] = solver.test_all()
    assert [output.name for output in result.outputs] == ["mAP"]
    solver.close()
    return [*losses, result.outputs[0].value]


def test_it_trains_and_judges_detections(
    canvases: list[tuple[bytes, bytes]], tmp_path: Path
) -> None:
    *losses, precision = train(Cpu(), canvases, tmp_path)
    assert losses[-1] < losses[0]
    assert 0 <= precision <= 1


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "error"), [("fp32", 2e-3), ("tf32", 2e-2), ("bf16", 0.1)])
def test_a_gpu_trains_it_too(
    canvases: list[tuple[bytes, bytes]], tmp_path: Path, precision: str, error: float
) -> None:
    """As graphs and step by step: the same bits; and about the losses of the CPU."""
    from osucaffe.backends.cuda import Cuda

    wanted = train(Cpu(), canvases, tmp_path)[:-1]
    backend = Cuda(precision=precision)
    graphs = train(backend, canvases, tmp_path)
    backend.graphs = False
    assert train(backend, canvases, tmp_path) == graphs
    np.testing.assert_allclose(graphs[:3], wanted[:3], rtol=error)


def test_the_sheet_shows_what_is_found(canvases: list[tuple[bytes, bytes]]) -> None:
    pytest.importorskip("PIL")
    show = load_script(FOLDER / "show.py")
    net = Net(read_net(FOLDER / "deploy.prototxt"), phase="TEST", backend=Cpu())
    datum, truth = parse_annotated(canvases[0][1])
    net.write("data", pixels(datum)[None].astype(np.float32) / 256)
    net.forward()
    assert net.read("detections").shape[3] == 7
    row = np.array([[0, truth.labels[0, 0], 0.9, *truth.boxes[0]]])
    picture = show.draw(pixels(datum), row, truth.labels[:, 0], truth.boxes)
    colors = {color for _, color in picture.getcolors(1 << 20)}
    assert show.GREEN in colors
    assert (show.YELLOW in colors) == (len(truth.labels) > 1)
    assert show.sheet([picture] * 7).size == (6 * 328, 2 * 328)
