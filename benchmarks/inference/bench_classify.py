"""`make bench-classify`: photographs a second from files through `osucaffe classify` on a GPU,
beside readers that only decode them."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import osucaffe

from .. import results
from ..training import gpu
from .bench_classify_sides import HEIGHT, WIDTH, classify, decode, write_photos
from .infer import write_files

_MODELS = ("caffenet", "googlenet")
_WAY = ("--gpu", "0", "--image_dims", "256,256", "--mean", "104,117,123", "--input_scale", "1")
_DECODING, _HOST = "decoding alone", "scaled on the host"
_RATE = "after the first two batches"


def measure(folder: Path, options: Any) -> dict[str, Any]:
    """The record's part of numbers: all runs of each side, in turns."""
    print("Making the photos ...", file=sys.stderr, flush=True)
    photos = folder / "photos"
    nbytes = write_photos(photos, options.distinct)
    paths = sorted(map(str, photos.iterdir())) * options.times
    folders = [str(photos)] * options.times
    models: dict[str, list[str]] = {}
    for name in options.models.split(","):
        (folder / name).mkdir()
        files = write_files(name, 10, folder / name)
        models[name] = ["--model", files["prototxt"], "--weights", files["weights"], *_WAY]
    runs: dict[str, list[dict[str, float]]] = {}
    for each in range(options.rounds + 1):
        found = {_DECODING: decode(paths)}
        for name, model in models.items():
            found[name] = classify(model, folders, len(paths), on_host=False)
        first = next(iter(models))
        if each == options.rounds:  # the old way is slow: once is enough
            found[f"{first}, {_HOST}"] = classify(models[first], folders, len(paths), on_host=True)
        print(found, file=sys.stderr, flush=True)
        for name, rates in found.items():
            if each or name.endswith(_HOST):  # the first run finds kernels, and fills caches
                runs.setdefault(name, []).append(rates)
    return {"photos": len(paths), "mean_bytes": round(nbytes), "runs": runs}


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    machine, runs = record["machine"], record["runs"]

    def median(name: str, key: str) -> float:
        return statistics.median(run[key] for run in runs[name])

    rows = [
        (name, *(f"{median(name, key):,.0f}" for key in (_RATE, "all")),
         *(f"{median(name, key) / median(_DECODING, key):.0%}" for key in (_RATE, "all")))
        for name in runs
    ]  # fmt: skip
    columns = ("", "img/s behind two batches", "img/s of all", "of decoding", "of decoding, all")
    return f"""# Photographs through `osucaffe classify`

Written by `make bench-classify` on {record["date"]}.

- {record["device"]}; {machine["cpu"]}, {machine["cores"]} cores; {", ".join(record["versions"])}
- osucaffe {record["osucaffe"]}; medians of {len(runs[_DECODING])} runs of each in turns

{results.table(columns, rows)}

- {record["photos"]:,} JPEGs of {WIDTH}x{HEIGHT} ({record["mean_bytes"]:,} bytes) in the page cache;
  `osucaffe classify {" ".join(_WAY)}` with default flags else, untrained weights.
- Decoding alone: as many processes as `classify` has, which read and decode the same files.
- All: from the first batch's request to the last result, with the start of the readers.
"""


def main() -> None:
    """Measure, write the results, print the table."""
    parser = results.parser(__doc__)
    parser.add_argument("--distinct", type=int, default=2000, help="different photos (2000)")
    parser.add_argument("--times", type=int, default=5, help="each is listed so often (5)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side (3)")
    parser.add_argument("--models", default=",".join(_MODELS), help="of models/, with commas")
    parser.add_argument("--folder", type=Path, help="where to make the photos for a while")
    options = parser.parse_args()
    record = results.begin(osucaffe=osucaffe.__version__, **gpu.versions())
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        record |= measure(Path(folder), options)
    file = f"classify-{results.slug(record['device'])}-{record['date']}"
    path = results.write(file, record, render(record), options.out)
    print(f"\n{path.read_text()}")


if __name__ == "__main__":
    main()
