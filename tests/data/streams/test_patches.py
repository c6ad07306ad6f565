"""Tests of pairs of patches: their places, every image once an epoch, and pairs that are bad."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from osucaffe.data.ahead.parallel_map import BadRecords
from osucaffe.data.databases.database import open_database, record_key, write_database
from osucaffe.data.databases.datum import make_datum
from osucaffe.data.pictures.bicubic import shrink
from osucaffe.data.streams.patches import PatchSource, Placement, choose, turn
from osucaffe.errors import UserError
from osucaffe.proto import caffe_pb2
from tests.data.records import transform

Make = Callable[..., Path]


def image(number: int, height: int = 24, width: int = 30) -> np.ndarray:
    """Noise about a level that tells the image: 20, 30 ..."""
    generator = np.random.default_rng(number)
    return generator.integers(8, size=(3, height, width), dtype=np.uint8) + 20 + 10 * number


@pytest.fixture
def database(tmp_path: Path) -> Make:
    def make(name: str, values: list[bytes | np.ndarray], keys: list[bytes] | None = None) -> Path:
        records = [each if isinstance(each, bytes) else make_datum(each, 0) for each in values]
        keys = keys or [record_key(i, f"{i}.png") for i in range(len(records))]
        write_database(tmp_path / name, zip(keys, records, strict=True))
        return tmp_path / name

    return make


def source(high: Path, low: Path | None = None, **settings: object) -> PatchSource:
    options = {"scale": 2, "side": 6, "random": True, "seed": 3} | settings
    opened = None if low is None else open_database(low)
    return PatchSource(open_database(high), opened, transform(), **options)


def take(made: PatchSource, position: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    low, high = (np.full((count, *shape), np.nan, np.float32) for shape in made.shapes)
    made.fill(position, [low, high])
    return low, high


def test_the_eight_ways_are_those_of_a_square() -> None:
    patch = np.arange(9).reshape(1, 3, 3)
    ways = {turn(patch, way).tobytes() for way in range(8)}
    assert len(ways) == 8
    for way in range(8):  # and each of them, mirrored or turned once more, is among them
        assert turn(patch, way)[..., ::-1].tobytes() in ways
        assert np.rot90(turn(patch, way), 1, (1, 2)).tobytes() in ways


def test_places_reach_every_corner_and_all_are_as_likely() -> None:
    draws = np.random.default_rng(0).integers(1 << 64, size=24_000, dtype=np.uint64)
    found = Counter(choose((8, 9), 7, int(draw)) for draw in draws)
    assert set(found) == {Placement(i, j, k) for i in range(2) for j in range(3) for k in range(8)}
    assert min(found.values()) > 400  # 500 each
    assert max(found.values()) < 600


@pytest.mark.parametrize("given", [False, True])
def test_a_pair_is_one_place_in_one_way(database: Make, given: bool) -> None:
    images = [image(number) for number in range(5)]
    small = [shrink(each, 2) for each in images]
    high = database("high", images)
    low, large = take(source(high, database("low", small) if given else None), 0, 40)
    ways = set()
    for number in range(40):
        index = round((large[number].mean() - 23) / 10)
        matches = [
            (top, left, way)
            for top in range(12 - 6 + 1)
            for left in range(15 - 6 + 1)
            for way in range(8)
            if (turn(small[index][:, top : top + 6, left : left + 6], way) == low[number]).all()
        ]
        [(top, left, way)] = matches
        patch = images[index][:, 2 * top : 2 * top + 12, 2 * left : 2 * left + 12]
        assert (turn(patch, way) == large[number]).all()
        ways.add(way)
    assert len(ways) == 8


def test_every_image_comes_once_an_epoch_in_another_order(database: Make) -> None:
    high = database("high", [image(number) for number in range(5)])
    _, large = take(source(high), 0, 20)
    orders = np.round((large.mean((1, 2, 3)) - 23) / 10).astype(int).reshape(4, 5)
    assert (np.sort(orders) == np.arange(5)).all()
    assert len({tuple(order) for order in orders.tolist()}) > 1


def test_encoded_images(database: Make) -> None:
    files = [
        simplejpeg.encode_jpeg(np.ascontiguousarray(image(n).transpose(1, 2, 0)), 95, "BGR")
        for n in range(2)
    ]
    records = [caffe_pb2.Datum(data=file, encoded=True).SerializeToString() for file in files]
    _, large = take(source(database("high", records), random=False), 0, 2)
    for number, file in enumerate(files):
        wanted = simplejpeg.decode_jpeg(file, "BGR").transpose(2, 0, 1)
        assert (large[number] == wanted[:, 6:18, 8:20]).all()


def test_pairs_that_do_not_belong_together_are_named(database: Make) -> None:
    images = [image(number) for number in range(3)]
    small = [shrink(each, 2) for each in images]
    high = database("high", images)
    keys = [record_key(i, f"{i}.png") for i in (0, 2)]
    for name, low, missing in [("short", small[:2], 2), ("gap", small[:2], 1)]:
        path = database(name, low, keys if name == "gap" else None)
        wanted = f'"0000000{missing}_{missing}.png" of {high} has no partner in {path}'
        with pytest.raises(UserError, match=wanted):
            source(high, path)
        with pytest.raises(UserError, match=f"of {high} has no partner in {path}"):
            source(path, high)
    other = database("other", [*small[:2], small[2][:, 1:]])
    with pytest.raises(UserError) as caught:
        take(source(high, other), 0, 3)
    for part in (f'"00000002_2.png" of {high} is 24x30', f"of {other} is 11x15", "not 2 times"):
        assert part in str(caught.value)


def test_bad_images_are_named_or_skipped(database: Make) -> None:
    file = simplejpeg.encode_jpeg(np.ascontiguousarray(image(2).transpose(1, 2, 0)), 95, "BGR")
    cut = caffe_pb2.Datum(data=file[:-300], encoded=True).SerializeToString()
    cases = [
        (image(2)[:, :11], "is 11x30 .* too small for a patch of 12x12"),
        (cut, "cannot be read"),
        (image(2)[:1], "has 1 channels, but the first record 3"),
    ]
    for number, (bad, message) in enumerate(cases):
        path = database(f"bad{number}", [image(0), image(1), bad, image(3)])
        with pytest.raises(UserError, match=rf'record "00000002_2.png" of {path} {message}'):
            take(source(path), 0, 4)
        records = BadRecords(skip=True)
        _, large = take(source(path, bad=records, random=False), 0, 8)
        levels = np.round((large.mean((1, 2, 3)) - 23) / 10).astype(int)
        assert levels.tolist() == [0, 1, 3, 3] * 2
        assert records.count == 1
        path = database(f"first{number}", [bad, image(1)])
        if number < 2:  # by the third, all others would have too many channels
            take(source(path, bad=BadRecords(skip=True)), 0, 2)
    path = database("none", [image(0, 8, 8), image(1, 8, 8)])
    with pytest.raises(UserError, match=f"{path} has no record that can be used"):
        take(source(path, bad=BadRecords(skip=True)), 0, 1)
