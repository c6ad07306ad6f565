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
from .data_cases import DEFAULTS, Files, draw, write

SURE = 30
"""Bits of chance that never come out alike."""


def show(case: Case) -> str:
    """The layer as prototxt, and what is not of the layer."""
    with tempfile.TemporaryDirectory() as folder:
        text = write(case, Path(folder)).text.replace(folder, "FOLDER")
    return f"# {case}\n{text}"


# -- the streams -----------------------------------------------------------------------------------

Batch = tuple[np.ndarray, ...]


def config(case: Case) -> DataConfig:
    return DataConfig(readers=case["readers"], cache=case["cache"], shuffle=case["block"])


def backend(case: Case) -> Cpu:
    found = Cpu(threads=1)
    found.raw_records = case["raw"]
    return found


def stream(case: Case, files: Files, count: int, rank: int = 0, ranks: int = 1) -> list[Batch]:
    """The first so many batches of a net with this layer, or of those those that are a rank's."""
    net = Net(
        parse_text(files.text, NetParameter),
        backend=backend(case),
        phase=case["phase"],
        seed=case["seed"],
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
    param = parse_text(
        f'base_lr: 1e-9 lr_policy: "fixed" random_seed: {case["seed"]}', SolverParameter
    )
    param.snapshot_prefix = str(folder / "run")
    learns = 'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param '
    learns += '{ num_output: 1 weight_filler { type: "xavier" } } }\n'
    learns += 'layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }'
    param.net_param.CopyFrom(parse_text(files.text + learns, NetParameter))
    tops = ("data", "label")[: 1 + case["labelled"]]
    state, found = "", list[Batch]()
    for steps in case["stop"], count - case["stop"]:
        solver = Solver(param, backend(case), inspectable=True, data_config=config(case))
        files.feed(solver.net)
        if state:
            solver.step(case["before"])
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
    count = case["batches"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write(case, folder)
        plain = case | {"readers": 1, "cache": "none", "raw": False}
        batches = stream(plain, files, count)
        found = [identify(case, files, batch) for batch in batches]
        if case["layer"] == "WindowData":
            check_windows(case, files, found)
        else:
            check_order(case, files, [record for each in found for record, _ in each])
        if case["layer"] != "MemoryData":  # its images are transformed once, when they are added
            check_draws(files, [each for batch in found for each in batch])
        same("another way to read", batches, stream(case, files, count))
        parts = [stream(case, files, count, rank, case["ranks"]) for rank in range(case["ranks"])]
        same("ranks", batches, [parts[i % case["ranks"]][i // case["ranks"]] for i in range(count)])
        if case["phase"] == "TRAIN":
            same("resumed", batches, resumed(case, files, folder, count))


def same(what: str, batches: Sequence[Batch], others: Sequence[Batch]) -> None:
    for place, (batch, other) in enumerate(zip(batches, others, strict=True)):
        for mine, theirs in zip(batch, other, strict=True):
            assert np.array_equal(mine, theirs), f"{what}: batch {place} differs"


def identify(case: Case, files: Files, batch: Batch) -> list[tuple[int, int]]:
    """Of each item of a batch, which record it is, and which of its outcomes."""
    found = []
    for place, data in enumerate(batch[0].astype(np.float64)):
        label = int(batch[1][place]) if len(batch) > 1 else None
        for number, record in enumerate(files.records):
            if label not in (None, record.label) or record.outcomes.shape[1:] != data.shape:
                continue
            off = np.abs(record.outcomes - data).reshape(len(record.outcomes), -1).max(axis=1)
            if off.min() <= 1e-4 * case["scale"]:
                found.append((number, int(off.argmin())))
                break
        else:
            raise AssertionError(f"item: no record with label {label} can become {data}")
    return found


def check_order(case: Case, files: Files, records: list[int]) -> None:
    """Each record comes once an epoch, in an order that the settings allow."""
    count, errors = case["records"], set()
    for start in range(max(1, case["rand_skip"])):
        places = np.arange(len(records)) + start
        epochs = [
            [
                record
                for record, epoch in zip(records, places // count, strict=True)
                if epoch == each
            ]
            for each in np.unique(places // count)
        ]
        error = next(filter(None, (wrong(case, files, each, start % count) for each in epochs)), "")
        if not error:
            check_shuffles(case, files, [each for each in epochs if len(each) == count])
            return
        errors.add(error)
    raise AssertionError(f"order: {records}: {errors}")


def shuffles(case: Case) -> bool:
    return case["shuffle"] or (case["block"] > 0 and case["phase"] == "TRAIN")


def check_shuffles(case: Case, files: Files, epochs: list[list[int]]) -> None:
    """Epochs that are shuffled have other orders, where chance alone would not make them alike."""
    parts = files.parts if case["shuffle"] else [sum(files.parts)]
    units = [-(-part // max(1, case["block"])) for part in parts if part]
    orders = math.prod(map(math.factorial, [*units, len(units)]))
    if shuffles(case) and (len(epochs) - 1) * math.log2(orders) > SURE:
        assert any(epoch != epochs[0] for epoch in epochs), "order: the same in each epoch"


def wrong(case: Case, files: Files, epoch: list[int], start: int) -> str:
    """What is wrong with the order of an epoch, or a part of one."""
    if len(set(epoch)) != len(epoch):
        return "one comes twice"
    shuffled = shuffles(case)
    steps = [(one, other) for one, other in itertools.pairwise(epoch)]
    if case["layer"] == "HDF5Data" and case["shuffle"]:
        file = np.repeat(np.arange(len(files.parts)), files.parts)
        runs = [key for key, _ in itertools.groupby(file[epoch].tolist())]
        return "" if len(set(runs)) == len(runs) else "files are mixed"
    if not shuffled:
        return "" if all(other == one + 1 for one, other in steps) else "they are not in order"
    block = 1 if case["shuffle"] else case["block"]
    for one, other in steps:
        ends = (one + 1) % block == 0 or one + 1 == case["records"]
        if (other % block) if ends else (other != one + 1):
            return "blocks are torn"
    return ""


def check_windows(case: Case, files: Files, found: list[list[tuple[int, int]]]) -> None:
    """A batch is background first, then its part of foreground."""
    foreground = int(np.float32(case["batch"]) * np.float32(case["fraction"]))
    for batch in found:
        kinds = [record < files.parts[0] for record, _ in batch]
        wanted = [False] * (case["batch"] - foreground) + [True] * foreground
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


KIND = Kind("tests.differential.settings.data", draw, check, show, DEFAULTS)

if __name__ == "__main__":
    sys.exit(main(KIND))
