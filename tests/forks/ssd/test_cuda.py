"""A detector on a simulated GPU: its kernels are launched, priors and truth stay precise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.layout import dtype_of
from osucaffe.data.databases.database import write_database
from osucaffe.forks.ssd.make_annotated import annotated_record
from osucaffe.net import Net
from osucaffe.proto import read_net
from tests.backends.cuda.simulated import simulate, with_libraries

NET = Path(__file__).parents[3] / "examples" / "ssd_digits" / "train_val.prototxt"


@pytest.mark.parametrize(("phase", "precision"), [("TRAIN", "fp32"), ("TEST", "bf16")])
def test_a_detector_launches_its_kernels(
    phase: str, precision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All of a net that trains and of one that is judged, priors and truth in whole precision."""
    simulate(monkeypatch)
    record = annotated_record(np.zeros((1, 80, 80), np.uint8), np.ones(1), np.array([[0, 0, 1, 1]]))
    write_database(tmp_path / "lmdb", iter([(b"0", record)]))
    param = read_net(NET)
    for layer in param.layer[:2]:
        layer.data_param.source = str(tmp_path / "lmdb")
        layer.data_param.batch_size = 2
    backend = with_libraries(Cuda(precision=precision, graphs=False))
    net = Net(param, phase=phase, backend=backend, seed=1)
    net.forward()
    for name in ("priors", "label", *(["detections"] if phase == "TEST" else [])):
        assert dtype_of(net.blobs[name].data) == "float32", name
        assert not net.blobs[name].data.layout_undecided
    np.testing.assert_array_equal(net.read("label")[0, 0, :, :2], [[0, 1], [1, 1]])
    if phase == "TRAIN":
        net.backward()
    net.layers[0].close()  # type: ignore[attr-defined]
