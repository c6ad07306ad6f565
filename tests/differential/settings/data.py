"""Streams of random data layers against a model in NumPy that reads the same files by itself.

    python -m tests.differential.settings.data --seconds 600 --seed 1

What is drawn (crops, mirrors, orders) is checked to be possible: each record that comes is one of
its possible outcomes, each comes once an epoch, and what varies does vary. To the bit: the stream
is the same whatever caches it or reads it, ranks share it out, and it goes on from a snapshot.
"""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.data.config import DataConfig
from osucaffe.net import Net
from osucaffe.proto import NetParameter, SolverParameter, parse_text
from osucaffe.solvers import Solver

from ..search import Case, Kind, main
from .data_cases import DEFAULTS, draw
from .data_files import Files, write

SURE = 30
"""Bits of chance that never come out alike."""


def show(case: Case) -> str:
    """The layer as prototxt, and what is not of the layer."""
    with tempfile.TemporaryDirectory() as folder:
        text = write(case, Path(folder)).text.replace(folder, "FOLDER")
    return f"# {DEFAULTS | case}\n{text}"


# -- the streams -----------------------------------------------------------------------------------

Batch = tuple[np.ndarray, ...]


def config(case: Case) -> DataConfig:
    full = DEFAULTS | case
    return DataConfig(readers=full["readers"], cache=full["cache"], shuffle=full["block"])


def backend(case: Case) -> Cpu:
    found = Cpu(threads=1)
    found.raw_records = bool(case.get("raw"))
    return found


def stream(case: Case, files: Files, count: int, rank: int = 0, ranks: int = 1) -> list[Batch]:
    """The first so many batches of a net with this layer, or of those those that are a rank's."""
    full = DEFAULTS | case
    net = Net(
        parse_text(files.text, NetParameter),
        backend=backend(case),
        phase=full["phase"],
        seed=full["seed"],
        inspectable=True,
        data_config=config(case),
    )
    files.feed(net)
    net.layers[0].split(rank, ranks)
    found = []
    for _ in range(rank, count, ranks):
        net.forward()
        found.append(tuple(net.read(name) for name in net.blobs))
    close(net)
    return found


def close(net: Net) -> None:
    layer = net.layers[0]
    if hasattr(layer, "close"):
        layer.close()


def resumed(case: Case, files: Files, folder: Path, count: int) -> list[Batch]:
    """The same of a solver that writes a snapshot on the way and another that goes on from it."""
    full = DEFAULTS | case
    param = parse_text(
        f'base_lr: 1e-9 lr_policy: "fixed" random_seed: {full["seed"]}', SolverParameter
    )
    param.snapshot_prefix = str(folder / "run")
    learns = 'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param '
    learns += '{ num_output: 1 weight_filler { type: "xavier" } } }\n'
    learns += 'layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }'
    param.net_param.CopyFrom(parse_text(files.text + learns, NetParameter))
    tops = ("data", "label")[: 1 + full["labelled"]]
    state, found = "", list[Batch]()
    for steps in full["stop"], count - full["stop"]:
        solver = Solver(param, backend(case), inspectable=True, data_config=config(case))
        files.feed(solver.net)
        if state:
            solver.step(full["before"])
            solver.restore(state)
        for _ in range(steps):
            solver.step(1)
            found.append(tuple(solver.net.read(name) for name in tops))
        state = solver.snapshot().state
        close(solver.net)
    return found


# -- the checks ------------------------------------------------------------------------------------


def check(case: Case) -> None:
    """Compare a layer's stream with what may come, and with itself read in other ways."""
    full = DEFAULTS | case
    count = full["batches"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write(case, folder)
        plain = case | {"readers": 1, "cache": "none", "raw": False}
        batches = stream(plain, files, count)
        found = [identify(full, files, batch) for batch in batches]
        if full["layer"] == "WindowData":
            check_windows(full, files, found)
        else:
            check_order(full, files, [record for each in found for record, _ in each])
        if full["layer"] != "MemoryData":  # its images are transformed once, when they are added
            check_draws(files, [each for batch in found for each in batch])
        same("another way to read", batches, stream(case, files, count))
        parts = [stream(case, files, count, rank, full["ranks"]) for rank in range(full["ranks"])]
        same("ranks", batches, [parts[i % full["ranks"]][i // full["ranks"]] for i in range(count)])
        if full["phase"] == "TRAIN":
            same("resumed", batches, resumed(case, files, folder, count))


def same(what: str, batches: Sequence[Batch], others: Sequence[Batch]) -> None:
    for place, (batch, other) in enumerate(zip(batches, others, strict=True)):
        for mine, theirs in zip(batch, other, strict=True):
            assert np.array_equal(mine, theirs), f"{what}: batch {place} differs"


def identify(full: Case, files: Files, batch: Batch) -> list[tuple[int, int]]:
    """Of each item of a batch, which record it is, and which of its outcomes."""
    found = []
    for place, data in enumerate(batch[0].astype(np.float64)):
        label = int(batch[1][place]) if len(batch) > 1 else None
        for number, record in enumerate(files.records):
            if label not in (None, record.label) or record.outcomes.shape[1:] != data.shape:
                continue
            off = np.abs(record.outcomes - data).reshape(len(record.outcomes), -1).max(axis=1)
            if off.min() <= 1e-4 * full["scale"]:
                found.append((number, int(off.argmin())))
                break
        else:
            raise AssertionError(f"item: no record with label {label} can become {data}")
    return found


def check_order(full: Case, files: Files, records: list[int]) -> None:
    """Each record comes once an epoch, in an order that the settings allow."""
    count, errors = full["records"], set()
    for start in range(max(1, full["rand_skip"])):
        places = np.arange(len(records)) + start
        epochs = [
            [
                record
                for record, epoch in zip(records, places // count, strict=True)
                if epoch == each
            ]
            for each in np.unique(places // count)
        ]
        error = next(filter(None, (wrong(full, files, each, start % count) for each in epochs)), "")
        if not error:
            check_shuffles(full, files, [each for each in epochs if len(each) == count])
            return
        errors.add(error)
    raise AssertionError(f"order: {records}: {errors}")


def shuffles(full: Case) -> bool:
    return full["shuffle"] or (full["block"] > 0 and full["phase"] == "TRAIN")


def check_shuffles(full: Case, files: Files, epochs: list[list[int]]) -> None:
    """Epochs that are shuffled have other orders, where chance alone would not make them alike."""
    units = [-(-part // max(1, full["block"])) for part in files.parts if part]
    orders = math.prod(map(math.factorial, [*units, len(units)]))
    if shuffles(full) and (len(epochs) - 1) * math.log2(orders) > SURE:
        assert any(epoch != epochs[0] for epoch in epochs), "order: the same in each epoch"


def wrong(full: Case, files: Files, epoch: list[int], start: int) -> str:
    """What is wrong with the order of an epoch, or a part of one."""
    if len(set(epoch)) != len(epoch):
        return "one comes twice"
    shuffled = shuffles(full)
    steps = [(one, other) for one, other in itertools.pairwise(epoch)]
    if full["layer"] == "HDF5Data" and shuffled:
        file = np.repeat(np.arange(len(files.parts)), files.parts)
        runs = [key for key, _ in itertools.groupby(file[epoch].tolist())]
        return "" if len(set(runs)) == len(runs) else "files are mixed"
    if not shuffled:
        return "" if all(other == one + 1 for one, other in steps) else "they are not in order"
    block = 1 if full["shuffle"] else full["block"]
    for one, other in steps:
        ends = (one + 1) % block == 0 or one + 1 == full["records"]
        if (other % block) if ends else (other != one + 1):
            return "blocks are torn"
    return ""


def check_windows(full: Case, files: Files, found: list[list[tuple[int, int]]]) -> None:
    """A batch is background first, then its part of foreground."""
    foreground = int(np.float32(full["batch"]) * np.float32(full["fraction"]))
    for batch in found:
        kinds = [record < files.parts[0] for record, _ in batch]
        wanted = [False] * (full["batch"] - foreground) + [True] * foreground
        assert kinds == wanted, f"windows: foreground is {kinds}"


def check_draws(files: Files, found: list[tuple[int, int]]) -> None:
    """What is drawn differs, of all records and of each from epoch to epoch, where chance alone
    would not make it alike."""
    bits = [math.log2(len(record.outcomes)) for record in files.records]
    drawn = [(record, outcome) for record, outcome in found if bits[record]]
    if sum(bits[record] for record, _ in drawn[1:]) > SURE:
        assert len({outcome for _, outcome in drawn}) > 1, "draws: always the same"
    last, again = dict[int, int](), list[tuple[int, bool]]()
    for record, outcome in drawn:
        again += [(record, last[record] == outcome)] if record in last else []
        last[record] = outcome
    if sum(bits[record] for record, _ in again) > SURE:
        assert not all(alike for _, alike in again), "draws: the same in each epoch"


KIND = Kind("tests.differential.settings.data", draw, check, show)

if __name__ == "__main__":
    sys.exit(main(KIND))
