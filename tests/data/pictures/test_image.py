"""Image files, their resizing (OpenCV's, as LMDBs of Caffe's tool show; bicubic)."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import parse_datum, pixels
from osucaffe.data.databases.image_file import decode_image
from osucaffe.data.pictures.bicubic import shrink
from osucaffe.data.pictures.image import read_image, resize
from osucaffe.data.pictures.resample import resample
from osucaffe.errors import UserError

FORMATS = Path(__file__).parents[2] / "fixtures" / "formats"


def test_resizing_gives_what_caffes_convert_imageset_wrote():
    encoded = open_database(FORMATS / "jpeg6_lmdb").read(0, 6)
    raw = open_database(FORMATS / "raw6_lmdb").read(0, 6)
    for (_, large), (_, small) in zip(encoded, raw, strict=True):
        image = pixels(parse_datum(large)).transpose(1, 2, 0)
        wanted = pixels(parse_datum(small)).transpose(1, 2, 0)
        assert (resize(image, *wanted.shape[:2]) == wanted).all()


@pytest.mark.parametrize("extents", [(64, 96, 50, 70), (37, 51, 200, 256), (120, 90, 11, 31)])
@pytest.mark.parametrize("channels", [1, 3])
def test_resizing_is_opencvs_to_the_bit(extents, channels):
    cv2 = pytest.importorskip("cv2")
    height, width, *target = extents
    image = np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)
    wanted = cv2.resize(image, target[::-1]).reshape(*target, channels)
    assert (resize(image, *target) == wanted).all()


def test_a_constant_image_stays_and_one_of_the_size_is_not_copied():
    image = np.full((5, 7, 3), 255, np.uint8)
    assert (resize(image, 31, 3) == 255).all()
    assert resize(image, 5, 7) is image


def test_bad_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read image .*no\.jpg: No such file"):
        read_image(str(tmp_path / "no.jpg"))
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff nothing more")
    with pytest.raises(UserError, match=r"cannot read image .*bad\.jpg"):
        read_image(str(tmp_path / "bad.jpg"))


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_16_bits_a_pixel_are_read_as_opencv_does(name: str, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    image = np.random.default_rng(0).integers(0, 1 << 16, (9, 11), dtype=np.uint16)
    cv2.imwrite(str(tmp_path / name), image)
    wanted = cv2.imread(str(tmp_path / name), cv2.IMREAD_GRAYSCALE)
    assert (read_image(str(tmp_path / name), False)[:, :, 0] == wanted).all()


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns of what is refused
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_few_bytes_that_ask_for_many_pixels(root: Path) -> None:
    """A damaged TIFF, which Pillow reads: 134 million pixels in 387 bytes."""
    content = (root / "tests/fuzz/regressions/image-bomb_tiff").read_bytes()
    with pytest.raises(ValueError, match=r"pixels in \d+ bytes: it is damaged"):
        decode_image(memoryview(content))


def test_a_large_image_brings_no_warning_of_python(tmp_path: Path) -> None:
    """pytest has its own filters of warnings: so in another process."""
    script = """
import sys, numpy as np, osucaffe.data.databases.image_file as image_file
from PIL import Image
Image.MAX_IMAGE_PIXELS = 8
Image.new("L", (3, 4)).save(sys.argv[1])
print(image_file.decode_image(memoryview(open(sys.argv[1], "rb").read())).shape)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "a.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("(4, 3, 1)\n", "")


random = np.random.default_rng(0)


def kernel(x: float) -> float:
    """Keys 1981, equation 4 with a = -1/2 (there: 15)."""
    x = abs(x)
    if x <= 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def slowly(line: np.ndarray, scale: int) -> np.ndarray:
    """A line of whole pixels shrunk, one product at a time; it goes on as its mirror image."""
    n = len(line)
    result = np.zeros(n // scale)
    for i in range(n // scale):
        centre = (i + 0.5) * scale - 0.5
        total = 0.0
        for j in range(math.ceil(centre - 2 * scale), math.floor(centre + 2 * scale) + 1):
            weight = kernel((j - centre) / scale)
            reflected = j % (2 * n)
            result[i] += weight * line[min(reflected, 2 * n - 1 - reflected)]
            total += weight
        result[i] /= total
    return result


@pytest.mark.parametrize(
    ("extents", "scale"), [((16, 24), 2), ((17, 21), 3), ((40, 36), 4), ((4, 7), 2), ((5, 5), 1)]
)
def test_the_formula(extents: tuple[int, int], scale: int) -> None:
    image = random.normal(size=(2, *extents))
    whole = image[:, : extents[0] // scale * scale, : extents[1] // scale * scale]
    rows = np.apply_along_axis(slowly, 1, whole, scale)
    np.testing.assert_allclose(
        shrink(image, scale), np.apply_along_axis(slowly, 2, rows, scale), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_a_box_is_that_part_of_the_whole(scale: int) -> None:
    image = random.integers(0, 256, (3, 20 * scale + 1, 30 * scale), dtype=np.uint8)
    whole = shrink(image, scale)
    assert whole.shape == (3, 20, 30)
    assert whole.dtype == np.uint8
    for top, left, side in [(0, 0, 5), (15, 25, 5), (7, 9, 11), (0, 10, 20)]:
        box = slice(top, top + side), slice(left, left + side)
        np.testing.assert_array_equal(shrink(image, scale, box), whole[:, *box])


def test_what_exceeds_a_byte_is_cut_off() -> None:
    image = np.zeros((1, 16, 16), np.uint8)
    image[..., 8:] = 255  # the kernel's negative parts overshoot beside an edge
    floats = shrink(image.astype(np.float32), 2)
    assert floats.min() < -1
    assert floats.max() > 256
    np.testing.assert_array_equal(shrink(image, 2), np.floor(floats.clip(0, 255) + 0.5))


@pytest.mark.parametrize("mode", ["LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4"])
@pytest.mark.parametrize("size", [(5, 9), (13, 30), (40, 8)])
def test_a_ramp_stays_a_ramp(mode: str, size: tuple[int, int]) -> None:
    ramp = np.add.outer(np.arange(20) * 4, np.arange(24) * 3).astype(np.uint8)[:, :, None]
    found = resample(ramp, *size, mode).astype(float)[:, :, 0]
    places = [(np.arange(n) + 0.5) * m / n - 0.5 for n, m in zip(size, (20, 24), strict=True)]
    wanted = np.add.outer(places[0] * 4, places[1] * 3)
    middle = tuple(slice(extent // 5 + 1, -extent // 5 - 1) for extent in size)
    error = {"NEAREST": 11, "AREA": 2.1}.get(mode, 1.6)
    assert np.abs(found - wanted)[middle].max() <= error
