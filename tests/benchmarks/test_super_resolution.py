"""benchmarks.training.super_resolution: both sides train alike, and are scored alike."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.training import super_resolution
from benchmarks.training import super_resolution_pictures as pictures
from benchmarks.training import super_resolution_sides as sides
from osucaffe.apps.super_resolution.quality import psnr, ssim
from osucaffe.data.databases.database import record_key, write_database
from osucaffe.data.databases.datum import make_datum
from osucaffe.data.pictures.bicubic import enlarge, shrink
from osucaffe.proto import caffe_pb2


@pytest.fixture
def job(tmp_path):
    """Two photographs, as models/edsr/photographs.py writes them."""
    draw = np.random.default_rng(0)
    images = [
        enlarge(draw.integers(0, 256, (3, 52, 50 + 4 * each), np.uint8), 2) for each in (0, 1)
    ]
    parts = {"train": images, "train_low": [shrink(each, 2) for each in images], "val": images[:1]}
    for title, part in parts.items():
        write_database(tmp_path / f"{title}_lmdb", (
            (record_key(index, "some/photo"), make_datum(image, 0, encoded=False))
            for index, image in enumerate(part)
        ))  # fmt: skip
    return {
        "photographs": str(tmp_path), "out": str(tmp_path), "gpu": None, "precision": "fp32",
        "batch": 1, "iterations": 2, "rate": 1e-3, "image": images[0],
    }  # fmt: skip


def test_score_and_batches(job):
    original = job["image"]
    found = sides.score(job, lambda image: enlarge(image, 2))
    made = enlarge(shrink(original, 2), 2)
    assert found == {"some/photo": (psnr(made, original, 2), ssim(made, original, 2))}
    mean = np.array(sides.training_net(job).layer[0].transform_param.mean_value, np.float32)
    pairs = list(sides.batches(job))
    assert len(pairs) == 2
    for small, large in pairs:
        low, high = (
            (each[0] + mean[:, None, None]).round().astype(np.uint8) for each in (small, large)
        )
        # Patches within an image, so that only their middles can be told from each other.
        np.testing.assert_array_equal(shrink(high, 2)[:, 3:-3, 3:-3], low[:, 3:-3, 3:-3])


def test_results(job, tmp_path, capsys):
    quality = {"some/photo": (30.0, 0.9), "other": (32.0, 0.8)}
    run = {"iterations": 1000, "seconds": 2.5, "version": "1.0"}
    rows = [{"name": "bicubic", "quality": quality}, {"name": "osucaffe", "quality": quality} | run]
    super_resolution.print_table(rows)
    assert capsys.readouterr().out.splitlines() == [
        "bicubic    31.000 dB  SSIM 0.8500",
        "osucaffe   31.000 dB  SSIM 0.8500  1,000 steps in 2.5 s; 1.0",
    ]
    super_resolution.write_results(job | {"image": None}, rows)
    (written,) = tmp_path.glob("super-resolution-cpu-*.md")
    assert "| osucaffe | 31.000 | 0.8500 | 1,000 | 2.5 | 1.0 |" in written.read_text()
    assert "| other | 32.000 | 32.000 |" in written.read_text()


def test_pictures():
    original = np.full((3, 60, 80), 90, np.uint8)
    original[:, 30:44, 50:70] = np.random.default_rng(0).integers(0, 256, (3, 14, 20), np.uint8)
    makes = {"bicubic": lambda small: enlarge(small, 2), "equal": lambda small: original}
    views = pictures.row(original, makes, 24)
    part = original[:, 25:49, 48:72]
    titles, parts = zip(*views, strict=True)
    bicubic = psnr(parts[1], parts[0], 0)
    assert titles == ("original", f"bicubic, {bicubic:.1f} dB", "equal, inf dB")
    # All that changes from pixel to pixel is in it.
    assert parts[0].std() == pytest.approx(part.std(), rel=0.01)
    np.testing.assert_array_equal(parts[0], parts[2])
    picture = np.asarray(pictures.drawn([views, views]))
    zoom, top = pictures.ZOOM, pictures.LINE + 24 * pictures.ZOOM + pictures.GAP + pictures.LINE
    shown = picture[top : top + 24 * zoom : zoom, : 24 * zoom : zoom]
    np.testing.assert_array_equal(shown, parts[0][::-1].transpose(1, 2, 0))


@pytest.mark.long
def test_both_sides_take_the_same_steps(job):
    pytest.importorskip("torch")
    ours = sides.train_osucaffe(job)
    theirs = sides.train_torch(job)
    weights = [
        caffe_pb2.NetParameter.FromString((sides.Path(job["out"]) / name).read_bytes())
        for name in ("first.caffemodel", "osucaffe.caffemodel", "torch.caffemodel")
    ]
    first, ours_now, theirs_now = (sides._parameters(each)["body_conv"][0] for each in weights)
    moved = np.abs(ours_now - first)
    assert moved.mean() > 1e-4
    assert np.abs(ours_now - theirs_now).mean() < 0.02 * moved.mean()
    for name, (quality, likeness) in ours["quality"].items():
        assert theirs["quality"][name] == pytest.approx((quality, likeness), abs=0.02)
    assert ours["bicubic"] == theirs["bicubic"]
