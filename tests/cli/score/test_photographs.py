"""Real photographs, large JPEGs of many sizes, on their way from the files to a net's blobs.

They are those of Debian's package lomiri-wallpapers-16.04; without it these tests are skipped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import parse_datum, pixels
from osucaffe.data.pictures.image import resize
from osucaffe.data.pictures.transform import record_draws
from osucaffe.proto import Datum
from tests.layers.nets import build

from ..conftest import Cli

FOLDER = Path("/usr/share/backgrounds")
FILES = sorted(FOLDER.glob("*_by_*.jpg"))
SIZE = (256, 341)

pytestmark = pytest.mark.skipif(len(FILES) < 13, reason="no package lomiri-wallpapers-16.04")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Path:
    """A folder with LMDBs of the photographs: as they are, raw at one size, and JPEGs of that."""
    folder = tmp_path_factory.mktemp("photographs")
    cli = Cli(folder, fixtures)
    cli.write("list.txt", "".join(f"{file.name} {n}\n" for n, file in enumerate(FILES)))
    resizing = [f"--resize_height={SIZE[0]}", f"--resize_width={SIZE[1]}"]
    for name, options in {
        "files": ["--encoded"],
        "raw": resizing,
        "jpeg": [*resizing, "--encoded", "--encode_type=jpg"],
    }.items():
        done = cli("convert_imageset", *options, "--readers=2", f"{FOLDER}/", "list.txt", name)
        assert (done.code, done.out) == (0, f"{name}: {len(FILES)} images\n"), done.err
    return folder


def decoded(number: int) -> np.ndarray:
    image: np.ndarray = simplejpeg.decode_jpeg(FILES[number].read_bytes(), "BGR")
    return image


def read(path: Path, number: int) -> Datum:
    return Datum.FromString(bytes(open_database(path).value(number)))


def batch(text: str, phase: str = "TRAIN", seed: int = 4) -> list[np.ndarray]:
    """The tops of the one layer of this text, after a forward pass."""
    net = build(text, phase=phase, seed=seed)
    net.forward()
    net.layers[0].close()
    return [net.read(name) for name in net.layers[0].param.top]


def test_files_are_kept_as_they_are(made: Path) -> None:
    for number, file in enumerate(FILES):
        datum = read(made / "files", number)
        assert datum.data == file.read_bytes()
        assert (datum.encoded, datum.label) == (True, number)


def test_resized_photographs_are_those_of_opencv(made: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    for number in (0, 4, 12):
        datum = read(made / "raw", number)
        assert (datum.channels, datum.height, datum.width) == (3, *SIZE)
        image = np.frombuffer(datum.data, np.uint8).reshape(3, *SIZE).transpose(1, 2, 0)
        np.testing.assert_array_equal(image, resize(decoded(number), *SIZE))
        wanted = cv2.resize(decoded(number), SIZE[::-1])
        assert np.abs(image - wanted.astype(int)).max() <= 1
        small = pixels(parse_datum(memoryview(read(made / "jpeg", number).SerializeToString())))
        difference = small.transpose(1, 2, 0) - image.astype(float)
        assert 0 < np.sqrt((difference**2).mean()) < 8  # compressed, at quality 95


def test_verify_and_a_photograph_that_is_cut_short(made: Path, cli: Cli) -> None:
    for name in ("files", "raw", "jpeg"):
        done = cli.ok("data", "verify", str(made / name), "--classes", str(len(FILES)))
        assert f"all {len(FILES)} records are good" in done.out
    assert (
        f"of {len({each.shape for each in map(decoded, range(len(FILES)))})} sizes"
        in cli("data", "verify", str(made / "files")).out
    )
    short = FILES[1].read_bytes()[:-200_000]
    (cli.folder / "short.jpg").write_bytes(short)
    cli.write("list.txt", f"{FILES[4]} 0\nshort.jpg 1\n")
    done = cli("convert_imageset", "", "list.txt", "bad")
    assert done.code != 0
    assert "cannot read image short.jpg" in done.err
    done = cli("convert_imageset", "--on_bad_record", "skip", "--encoded", "", "list.txt", "good")
    assert (done.code, done.out) == (0, "good: 1 images (1 bad ones skipped)\n")


def test_inspect_and_the_contact_sheet(made: Path, cli: Cli) -> None:
    image = pytest.importorskip("PIL.Image")
    done = cli.ok("data", "inspect", str(made / "files"), "--sheet", "sheet.png")
    assert f"{len(FILES)} records" in done.out
    assert "form    JPEG" in done.out
    with image.open(cli.folder / "sheet.png") as opened:
        sheet = np.asarray(opened.convert("RGB"))
    # Five columns of cells of 112 + 12; each picture is about as bright as its photograph.
    for number in (0, 7, 14):
        row, column = divmod(number, 5)
        left, bottom = 24 + column * 124, 72 + row * (112 + 22 + 12) + 112
        shown = sheet[bottom - 30 : bottom, left + 45 : left + 67].mean()
        photograph = decoded(number)
        height, width = photograph.shape[:2]
        scale = 112 / max(height, width)
        rows = slice(height - round(30 / scale), height)
        columns = slice(*(round(width / 2 + side / scale) for side in (-11, 11)))
        assert abs(shown - photograph[rows, columns].mean()) < 6, number


@pytest.mark.parametrize("layer", ["Data", "ImageData"])
def test_random_crops_of_photographs_of_many_sizes(made: Path, layer: str) -> None:
    settings = {
        "Data": f'data_param {{ source: "{made}/files" backend: LMDB batch_size: 10 prefetch: 0 }}',
        "ImageData": f'image_data_param {{ source: "{made}/list.txt" root_folder: "{FOLDER}/" '
        "batch_size: 3 }",
    }
    data, labels = batch(
        f'layer {{ name: "d" type: "{layer}" top: "data" top: "label" {settings[layer]} '
        "transform_param { crop_size: 227 mirror: true mean_value: 110 scale: 0.5 } }"
    )
    assert labels.tolist() == list(range(len(data)))
    places = set()
    for number in {0, 2, len(data) - 1}:
        [draw] = record_draws(4, np.array([0]), np.array([number])).tolist()
        image = decoded(number)
        height, width = image.shape[:2]
        top = (height - 226) * (draw >> 1 & 0x7FFFFFFF) >> 31
        left = (width - 226) * (draw >> 32) >> 32
        crop = image[top : top + 227, left : left + 227].transpose(2, 0, 1)
        wanted = (crop[..., :: -1 if draw & 1 else 1] - np.float32(110)) * np.float32(0.5)
        np.testing.assert_array_equal(data[number], wanted)
        places.add((top, left))
    assert len(places) > 1


@pytest.mark.parametrize("scale", [2, 3])
def test_patches_at_two_resolutions(made: Path, scale: int) -> None:
    """The small patches are what Pillow makes of the photographs: it rounds between its two passes,
    and what lies near black or white is cut off there."""
    image = pytest.importorskip("PIL.Image")
    text = f"""layer {{ name: "d" type: "PatchData" top: "low" top: "high"
        patch_data_param {{ source: "{made}/files" batch_size: 5 scale: {scale} prefetch: 0 }} }}"""
    low, high = batch(text, "TEST")
    for number in (0, 3):
        height, width = (extent // scale * scale for extent in decoded(number).shape[:2])
        whole = decoded(number)[:height, :width]
        small = image.fromarray(whole).resize(
            (width // scale, height // scale), image.Resampling.BICUBIC
        )
        row, column = (height // scale - 48) // 2, (width // scale - 48) // 2
        wanted = np.asarray(small)[row : row + 48, column : column + 48].transpose(2, 0, 1)
        difference = np.abs(low[number] - wanted)
        assert difference.max() <= 2
        assert (difference > 1).mean() < 0.001
        rows, columns = (slice(at * scale, (at + 48) * scale) for at in (row, column))
        np.testing.assert_array_equal(high[number], whole[rows, columns].transpose(2, 0, 1))
    low, high = batch(text)
    # Turned alike: the mean of each small pixel's large ones is near it.
    means = high.reshape(5, 3, 48, scale, 48, scale).mean((3, 5))
    assert np.sqrt(((means - low) ** 2).mean()) < 5
    assert np.abs((means - low).mean()) < 0.1
