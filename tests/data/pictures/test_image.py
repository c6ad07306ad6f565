"""Tests of image files: resizing is OpenCV's, as the LMDBs that Caffe's own tool made show."""

from pathlib import Path

import numpy as np
import pytest

from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import decode_image, parse_datum, pixels
from osucaffe.data.pictures.image import read_image, resize
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


def test_a_few_bytes_that_ask_for_many_pixels(root: Path) -> None:
    """A damaged TIFF, which Pillow reads: 134 million pixels in 387 bytes."""
    content = (root / "tests/fuzz/regressions/image-bomb_tiff").read_bytes()
    with pytest.raises(ValueError, match=r"pixels in \d+ bytes: it is damaged"):
        decode_image(memoryview(content))
