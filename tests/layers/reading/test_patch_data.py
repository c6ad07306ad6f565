"""Tests of PatchData: what the layer brings, on how many ranks soever, and bad settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osucaffe.data.databases.database import record_key, write_database
from osucaffe.data.databases.datum import make_datum
from osucaffe.data.pictures.bicubic import shrink
from osucaffe.net import Net

from .test_data_files import batches as all_batches
from .test_data_files import build, refuse

MEAN = "mean_value: 103 mean_value: 111 mean_value: 114 scale: 0.5"


@pytest.fixture
def images(tmp_path: Path) -> list[np.ndarray]:
    """Seven images of several sizes, in tmp_path/high; half as large in tmp_path/low."""
    random = np.random.default_rng(0)
    made = [random.integers(256, size=(3, 20 + 2 * n, 30), dtype=np.uint8) for n in range(7)]
    for name, each in (("high", made), ("low", [shrink(image, 2) for image in made])):
        records = ((record_key(i), make_datum(image, 0)) for i, image in enumerate(each))
        write_database(tmp_path / name, records)
    return made


def patches(folder: Path, text: str = "", transform: str = MEAN) -> str:
    """The layer; text: fields of patch_data_param that replace these."""
    fields = {"source": f'"{folder / "high"}"', "batch_size": "3", "patch_size": "5"}
    fields |= dict(part.split(": ") for part in text.split(", ") if part)
    settings = " ".join(f"{name}: {value}" for name, value in fields.items())
    return f"""type: "PatchData" top: "low" top: "high" transform_param {{ {transform} }}
        patch_data_param {{ {settings} }}"""


def batches(net: Net, count: int) -> list[np.ndarray]:
    found = all_batches(net, count, "low", "high")
    net.layers[0].close()
    return found


@pytest.mark.usefixtures("readers_are")
def test_both_patches_show_one_place(tmp_path: Path, images: list[np.ndarray]) -> None:
    net = build(patches(tmp_path), phase="TEST")
    assert [net.blobs[name].shape for name in ("low", "high")] == [(3, 3, 5, 5), (3, 3, 10, 10)]
    assert net.layers[0].records == 7
    low, high = batches(net, 3)
    mean = np.array([103, 111, 114])[:, None, None]
    for number in range(9):
        image = images[number % 7]
        row, column = (image.shape[1] // 2 - 5) // 2, (15 - 5) // 2
        patch = image[:, 2 * row : 2 * row + 10, 2 * column : 2 * column + 10]
        assert (high[number] == (patch - mean) / 2).all()
        small = shrink(image, 2)[:, row : row + 5, column : column + 5]
        assert (low[number] == (small - mean) / 2).all()


def test_small_images_that_are_given_are_taken(tmp_path: Path, images: list[np.ndarray]) -> None:
    given = batches(build(patches(tmp_path, f'low_source: "{tmp_path / "low"}"')), 5)
    for one, other in zip(given, batches(build(patches(tmp_path)), 5), strict=True):
        assert (one == other).all()  # they were made in the same way


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 64])
def test_ranks_and_resumed_runs_see_the_same_patches(
    tmp_path: Path, images: list[np.ndarray], ranks: int
) -> None:
    """The second step of so many ranks, to which they jump, is what one rank takes in turn."""
    shares = []
    for rank in range(ranks):
        net = build(patches(tmp_path), readers=ranks % 3 + 1)
        net.layers[0].split(rank, ranks)
        net.layers[0].position = 3 * ranks
        shares.append(batches(net, 1))
        assert net.layers[0].position == 2 * 3 * ranks
    alone = batches(build(patches(tmp_path)), 2 * ranks)
    for found, wanted in zip(zip(*shares, strict=True), alone, strict=True):
        assert (np.concatenate(found) == wanted[3 * ranks :]).all()


def test_bad_settings_name_the_layer(tmp_path: Path, images: list[np.ndarray]) -> None:
    for text, transform, message in [
        ('source: ""', "", "source: is missing"),
        ("batch_size: 0", "", "batch_size: must be at least 1"),
        ("scale: 0", "", "scale: must be at least 1"),
        ('source: "nowhere"', "", "source: LMDB nowhere does not exist"),
        ('low_source: "nowhere"', "", "low_source: LMDB nowhere does not exist"),
        ("", "crop_size: 4", "give patch_size for crop_size"),
        ("", "mirror: true", "nothing for mirror"),
        ("", "mean_value: 1 mean_value: 2", "mean_value: 2 values for 3 channels"),
    ]:
        refuse(patches(tmp_path, text, transform), message)
