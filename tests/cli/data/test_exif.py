"""All that read image files turn them as their EXIF says, or none does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from osucaffe.data.config import DataConfig
from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import make_datum
from osucaffe.pycaffe.io import load_image
from tests.data.databases.test_image_file import as_pillow, lying
from tests.layers import nets

from ..conftest import Cli


def test_all_that_read_files_agree(cli: Cli, tmp_path: Path) -> None:
    content = lying("JPEG", 6)
    (tmp_path / "a.jpg").write_bytes(content)
    upright = as_pillow(content).transpose(2, 0, 1)
    source = f'source: "{tmp_path}/list.txt" root_folder: "{tmp_path}/" batch_size: 1'
    (tmp_path / "list.txt").write_text("a.jpg 0\n")
    layers = [f'type: "ImageData" image_data_param {{ {source} }}']
    for name, flags in ("raw", ()), ("encoded", ("--encoded",)):
        cli.ok("convert_imageset", *flags, f"{tmp_path}/", f"{tmp_path}/list.txt", name)
        where = f'source: "{cli.folder}/{name}" backend: LMDB batch_size: 1'
        layers.append(f'type: "Data" data_param {{ {where} }}')
    for layer in layers:
        net = nets.build(
            f'layer {{ name: "d" top: "x" top: "l" {layer} }}', data_config=DataConfig()
        )
        net.forward()
        np.testing.assert_array_equal(net.read("x")[0], upright)
    loaded = (load_image(str(tmp_path / "a.jpg")) * 255).round()
    np.testing.assert_array_equal(loaded[:, :, ::-1].transpose(2, 0, 1), upright)


def test_the_flag(cli: Cli, tmp_path: Path) -> None:
    (cli.folder / "a.jpg").write_bytes(lying("JPEG", 6))
    (cli.folder / "list.txt").write_text("a.jpg 3\n")
    cli.ok("convert_imageset", "--ignore_exif", "./", "list.txt", "db")
    stored = np.asarray(Image.open(cli.folder / "a.jpg"))[:, :, ::-1].transpose(2, 0, 1)
    [(_, value)] = open_database(cli.folder / "db").read(0, 1)
    assert bytes(value) == make_datum(np.ascontiguousarray(stored), 3, encoded=False)
