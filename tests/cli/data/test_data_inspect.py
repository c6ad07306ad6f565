"""Tests of `osucaffe data inspect` and `osucaffe data verify`."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from osucaffe.data.databases.database import open_database, record_key, write_database
from osucaffe.data.databases.datum import make_datum
from osucaffe.data.sets.survey import sample
from osucaffe.proto import Datum

from ..conftest import Cli


def test_inspect_counts(cli: Cli, fixtures) -> None:
    done = cli.ok("data", "inspect", str(fixtures / "formats" / "mnist200_lmdb"), "--readers", "2")
    words = [" ".join(line.split()) for line in done.out.splitlines()]
    assert words[0].endswith("mnist200_lmdb: 200 records, 159 KB")
    assert "form raw bytes" in words
    assert "shape 1 x 28 x 28 (channels x height x width)" in words
    assert "labels 10 different, 0 to 9" in words
    counts = [line.split()[1] for line in words if line.endswith("█")]
    assert len(counts) == 10
    assert sum(map(int, counts)) == 200


def test_the_contact_sheet_shows_the_images(cli: Cli, fixtures) -> None:
    image = pytest.importorskip("PIL.Image")
    path = str(fixtures / "formats" / "jpeg6_lmdb")
    cli.ok("data", "inspect", path, "--sheet", "sheet.png", "--samples", "4")
    with image.open(cli.folder / "sheet.png") as opened:
        pixels = np.asarray(opened.convert("RGB"))
    # The first thumbnail: 112 wide, 75 high, at the bottom of its square cell.
    thumbnail = pixels[72 + 112 - 75 : 72 + 112, 24 : 24 + 112].astype(float)
    [(_, value)] = open_database(path).read(0, 1)
    datum = Datum.FromString(bytes(value))
    with image.open(io.BytesIO(datum.data)) as opened:
        wanted = np.asarray(opened.resize((112, 75), image.Resampling.NEAREST)).astype(float)
    assert np.abs(thumbnail - wanted).mean() < 25
    assert np.corrcoef(thumbnail.ravel(), wanted.ravel())[0, 1] > 0.9
    assert (pixels[:20, -20:] == 255).all()


def test_samples_show_classes_that_take_turns(tmp_path: Path) -> None:
    records = [make_datum(np.full((1, 1, 1), at, np.uint8), at % 3) for at in range(90)]
    write_database(tmp_path / "x", [(record_key(at), value) for at, value in enumerate(records)])
    samples = sample(open_database(tmp_path / "x"), 60)
    numbers = [int(pixels[0, 0, 0]) for pixels, _ in samples]
    assert len(numbers) == 60
    assert numbers == sorted(set(numbers))
    assert min(Counter(label for _, label in samples).values()) > 10


def test_a_sheet_of_no_readable_record(cli: Cli) -> None:
    write_database(cli.folder / "x_lmdb", [(record_key(0), b"nonsense")])
    done = cli.fails("data", "inspect", "x_lmdb", "--sheet", "sheet.png")
    assert done.out.splitlines()[1] == '  bad record "00000000": it is not a Datum'
    assert done.err == "osucaffe: x_lmdb: no sample can be read, so there is no sheet.png\n"


def test_verify_names_bad_records(cli: Cli, fixtures) -> None:
    [(_, value)] = open_database(fixtures / "formats" / "jpeg6_lmdb").read(0, 1)
    whole = Datum.FromString(bytes(value))
    cut = Datum(data=whole.data[:-2000], encoded=True).SerializeToString()
    values = [whole.SerializeToString(), cut, b"nonsense", make_datum(np.ones((1, 2, 2), "u1"), 7)]
    write_database(cli.folder / "x_lmdb", [(record_key(i), v) for i, v in enumerate(values)])
    done = cli.fails("data", "verify", "x_lmdb", "--classes", "7")
    assert "x_lmdb: 3 of 4 records are bad" in done.err
    for number, reason in ((1, ""), (2, "not a Datum"), (3, "label 7 is not in 0..6")):
        assert f'bad record "0000000{number}": ' in done.out
        assert reason in done.out
    good = str(fixtures / "formats" / "jpeg6_lmdb")
    done = cli("data", "verify", good)
    assert (done.code, done.out) == (0, f"{good}: all 6 records are good\n")


def test_verify_goes_on_behind_a_database_that_cannot_be_read(cli: Cli, fixtures) -> None:
    good = str(fixtures / "formats" / "jpeg6_lmdb")
    (cli.folder / "cut").mkdir()
    content = Path(good, "data.mdb").read_bytes()
    (cli.folder / "cut" / "data.mdb").write_bytes(content[:-5000])
    done = cli("data", "verify", "cut", good)
    assert (done.code, done.err) == (1, "osucaffe: 1 of 2 databases are bad\n")
    first, second = done.out.splitlines()
    assert "LMDB cut is truncated" in first
    assert second == f"{good}: all 6 records are good"
