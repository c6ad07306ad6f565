"""Copies of one picture: found through other bytes, sizes and light; other pictures are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osucaffe.apps.photographs import copies

Image = pytest.importorskip("PIL.Image")


def smooth(seed: int, side: int = 160) -> np.ndarray:
    """A picture with structures of all sizes."""
    rng = np.random.default_rng(seed)
    total = np.zeros((side, side, 3))
    for extent in 2, 5, 10, 40:
        part = rng.uniform(0, 255, (extent, extent, 3)).astype(np.uint8)
        total += np.asarray(Image.fromarray(part).resize((side, side), Image.Resampling.BICUBIC))
    return (total / 4).astype(np.uint8)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Ten pictures; some further files of the third and the fourth, in turns."""
    pictures = [Image.fromarray(smooth(seed)) for seed in range(10)]
    for at, picture in enumerate(pictures):
        picture.save(tmp_path / f"{at}.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = pictures[2].transpose(Image.Transpose.ROTATE_90)
    for name, picture, settings in (
        ("a.jpg", pictures[2], {"quality": 50}),
        ("b.jpg", pictures[3].resize((90, 90)), {}),
        ("c.png", pictures[2].point(lambda value: int(value * 0.9)), {}),
        ("d.jpg", lying, {"exif": exif}),
        ("e.webp", pictures[3], {}),
    ):
        picture.save(tmp_path / name, **settings)
    (tmp_path / "f.png").write_bytes((tmp_path / "3.png").read_bytes())
    return sorted(map(str, tmp_path.iterdir()))


@pytest.mark.parametrize("rows", [3, 1024])
def test_copies_lead_to_the_first(
    paths: list[str], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_ROWS", rows)
    done = []
    first = copies.find_copies(paths, 2, lambda: done.append(1))
    assert len(done) == len(paths) == 16
    assert first == [*range(10), 2, 3, 2, 2, 3, 3]
    assert copies.find_copies(paths[::-1], 1) == [0, 0, 2, 2, 0, 2, *range(6, 12), 0, 2, 14, 15]


def test_flat_and_broken_files_have_only_equal_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for at in range(3):
        flat = rng.integers(100, 103, (64, 64, 3), np.uint8)
        Image.fromarray(flat).save(tmp_path / f"{at}.png")
        (tmp_path / f"broken{at}.jpg").write_bytes(b"\xff\xd8\xff and no more")
    (tmp_path / "3.png").write_bytes((tmp_path / "1.png").read_bytes())
    paths = sorted(map(str, tmp_path.iterdir()))
    assert copies.find_copies([*paths, str(tmp_path / "absent.jpg")], 1) == [0, 1, 2, 1, 4, 5, 6, 7]
