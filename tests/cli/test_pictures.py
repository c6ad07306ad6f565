"""Pictures that no longer fit on the disk: one message, and what was there before stays."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from .conftest import Cli
from .reports.test_parse_log import CAFFE

FullDisk = Callable[[int], AbstractContextManager[None]]


@pytest.fixture
def commands(cli: Cli, fixtures: Path, root: Path) -> dict[str, list[str]]:
    """Each command that makes a picture, up to the picture's name."""
    cli.write("caffe.log", CAFFE)
    image = cli.folder / "grey.jpg"
    image.write_bytes(simplejpeg.encode_jpeg(np.zeros((28, 28, 3), np.uint8)))
    formats = fixtures / "formats"
    model = ["--model", str(root / "models" / "lenet" / "deploy.prototxt")]
    weights = ["--weights", str(formats / "lenet_iter_200.caffemodel")]
    return {
        "parse_log": ["caffe.log", "out", "--plot"],
        "classify": ["grey.jpg", *model, *weights, "--picture"],
        "draw": [cli.write_net()],
        "data": ["inspect", str(formats / "jpeg6_lmdb"), "--sheet"],
    }


NEEDED = {"parse_log": "matplotlib", "classify": "matplotlib", "draw": "pydot", "data": "PIL"}


@pytest.mark.parametrize("command", NEEDED)
def test_a_full_disk_leaves_the_old_picture(
    cli: Cli, commands: dict[str, list[str]], full_disk: FullDisk, command: str
) -> None:
    pytest.importorskip(NEEDED[command])
    if command == "draw" and shutil.which("dot") is None:
        pytest.skip("needs Graphviz")
    cli.write("picture.png", "old")
    with full_disk(4000):
        done = cli(command, *commands[command], "picture.png")
    assert done.code == 1
    assert done.err.endswith("osucaffe: picture.png: cannot write it: File too large\n")
    assert "Traceback" not in done.err
    assert (cli.folder / "picture.png").read_text() == "old"
    assert not list(cli.folder.glob(".*"))
    done = cli.ok(command, *commands[command], "picture.png")
    assert (cli.folder / "picture.png").stat().st_size > 4000
