"""`make bench-data`: images per second from an LMDB, by osucaffe's readers and by DataLoader's.

The limits are measured in the same run: threads that only decode, threads that only copy memory.
With a GPU also: training from an LMDB beside training on data that lie on the device.
"""

from __future__ import annotations

import gc
import importlib.util
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import simplejpeg

import osucaffe
from osucaffe.data.ahead.processes import MAX_READER_THREADS

from .. import results
from . import bench_data_training
from .bench_data_sides import (
    BATCH,
    CROP,
    SIDE,
    Loader,
    Osucaffe,
    copy_rate,
    decode_rate,
    images_per_second,
    store_rate,
    write_databases,
)

RECORD_BYTES = 3 * SIDE * SIDE
_NAMES = (
    "osucaffe bytes", "osucaffe floats", "DataLoader bytes", "DataLoader", "limit",
    "limit of floats",
)  # fmt: skip


def measure_readers(
    kind: str, path: Path, workers: int, rounds: int, *, gpu: bool
) -> dict[str, Any]:
    """The rates of one kind of database at so many workers, and of the limits."""
    gc.collect()  # which closes the LMDB
    peers = [Loader(path, workers, pinned=gpu, as_bytes=each) for each in (True, False)]
    ours = [Osucaffe(path, workers, as_bytes=each) for each in (True, False)]
    sides: list[Osucaffe | Loader] = [*ours, *peers]
    is_jpeg = kind == "JPEG"
    limits: list[list[float]] = [[], []]
    for each in ours:
        list(each.batches(2 * workers + 2))  # all buffers: memory is slow at its first use
    rates: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        limits[0].append(
            decode_rate(path, workers) if is_jpeg else copy_rate(workers) / RECORD_BYTES
        )
        limits[1].append(store_rate(path if is_jpeg else None, workers))
        for side, found in zip(sides, rates, strict=True):
            found.append(images_per_second(side, workers))
    for side in sides:
        side.close()
    return {"kind": kind, "workers": workers} | {
        name: {"median": round(statistics.median(each)), "runs": [round(rate) for rate in each]}
        for name, each in zip(_NAMES, [*rates, *limits], strict=True)
    }


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    machine = record["machine"]
    rows = []
    for case in record["cases"]:
        # Results of earlier days lack the DataLoader that returns bytes.
        found = (case.get(name, case["DataLoader"])["median"] for name in _NAMES)
        raw, floats, peer, slow_peer, limit, stores = found
        rows.append(
            (
                case["kind"],
                case["workers"],
                f"{raw:,}",
                f"{raw * RECORD_BYTES / 1e9:.1f}",
                f"{floats:,}",
                f"{peer:,}",
                f"{raw / peer:.2f}",
                f"{slow_peer:,}",
                f"{floats / slow_peer:.2f}",
                f"{limit:,}",
                f"{raw / limit:.0%}",
                f"{floats / limit:.0%}",
                f"{stores:,}",
                f"{floats / stores:.0%}",
            )
        )
    columns = (
        "records", "workers", "bytes img/s", "GB/s", "floats img/s", "DataLoader's bytes",
        "bytes over it", "DataLoader's floats", "floats over it", "limit img/s", "bytes reach",
        "floats reach", "limit of floats", "floats reach",
    )  # fmt: skip
    return f"""# Reading data: osucaffe and PyTorch's DataLoader

Written by `make bench-data` on {record["date"]}.

- {machine["cpu"]}, {machine["cores"]} cores, {machine["memory_gib"]} GiB
- osucaffe {record["osucaffe"]}, PyTorch {record["torch"]}, simplejpeg {record["simplejpeg"]}
- {record["rounds"]} runs of each in turns; medians

{results.table(columns, rows) if rows else ""}

- LMDBs of {record["records"]["raw"]:,} raw and {record["records"]["JPEG"]:,} JPEG records of
  {SIDE}x{SIDE}x3, in the page cache; batches of {BATCH}; random crops of {CROP}, half of them
  mirrored, less the mean colour. Workers are threads here, of JPEGs processes if they are more
  than {MAX_READER_THREADS}; in the DataLoader always processes.
- bytes: what a GPU is given, which crops, mirrors, subtracts and converts; the DataLoader's workers
  crop and mirror. floats: the workers do all of it, with the same decoder{record["pinned"]}.
- The limit: of JPEGs, that many threads that only decode them; of raw records, that many threads
  that only copy memory ({RECORD_BYTES:,} bytes an image). The limit of floats: threads that do no
  more than to store a crop's floats ({4 * 3 * CROP * CROP:,} bytes), of JPEGs behind decoding each.
{_training(record.get("training"))}"""


def _training(training: dict[str, Any] | None) -> str:
    if training is None:
        return ""
    rates, upload = training["images_per_second"], training["upload_bytes_per_second"] / 1e9
    rows = [
        (
            name,
            f"{rate:,}",
            f"{rate * RECORD_BYTES / 1e9:.1f}",
            f"{rate / rates['on the device']:.1%}",
        )
        for name, rate in rates.items()
    ]
    return f"""
## Training from the LMDBs

AlexNet, bf16, batch {BATCH}, on one {training["device"]}: a whole iteration with its update, on
{training["date"]}. Pinned memory is uploaded at {upload:.1f} GB/s here.

{results.table(("data", "img/s", "GB/s of pixels", "of the first"), rows)}
"""


def main() -> None:
    """Measure, write the results, print the table."""
    parser = results.parser(__doc__)
    parser.add_argument("--workers", help="numbers of workers, with commas (default: 1,2,4,8,16)")
    parser.add_argument(
        "--only", choices=("readers", "training"), help="this part only; the day's other one stays"
    )
    parser.add_argument("--records", type=int, default=4096, help="of each database (4096)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side (5)")
    parser.add_argument("--folder", type=Path, help="where to make the databases for a while")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("bench_data: PyTorch is missing: pip install torch, or make bench-data")
    import torch

    gpu = torch.cuda.is_available()
    machine = results.machine()
    # More workers than cores measure the system's scheduler.
    numbers = [int(text) for text in (options.workers or "1,2,4,8,16").split(",")]
    numbers = numbers if options.workers else [n for n in numbers if n <= machine["cores"]]
    record: dict[str, Any] = {
        "date": results.today(),
        "machine": machine,
        "osucaffe": osucaffe.__version__,
        "torch": torch.__version__,
        "simplejpeg": simplejpeg.__version__,
        "rounds": options.rounds,
        "pinned": ", and pins the batch" if gpu else "",
        "records": {"raw": options.records, "JPEG": options.records},
        "cases": [],
    }
    name = torch.cuda.get_device_name() if gpu else "cpu"
    file = f"data-{results.slug(name)}-{record['date']}"
    if options.only:
        kept = results.earlier(file, options.out)
        record |= {part: kept[part] for part in ("cases", "training") if part in kept}
    if options.only != "training":
        record["cases"] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print("Making the databases ...", file=sys.stderr, flush=True)
        paths = write_databases(Path(folder), options.records, options.records)
        for kind, path in paths.items() if options.only != "training" else ():
            for workers in numbers:
                case = measure_readers(kind, path, workers, options.rounds, gpu=gpu)
                record["cases"].append(case)
                print(case, file=sys.stderr, flush=True)
                results.write(file, record, render(record), options.out)
        if gpu and options.only != "readers":
            readers = [n for n in (1, 2, 4, 8) if n <= machine["cores"]]
            trained = bench_data_training.measure(paths, readers, options.rounds)
            record["training"] = {"date": record["date"], **trained}
        path = results.write(file, record, render(record), options.out)
    print(f"\n{path.read_text()}")


if __name__ == "__main__":
    main()
