"""Bad input gives one clear message and exit code 1, whatever part of it is bad."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import h5py
import lmdb
import numpy as np
import pytest

from osucaffe.proto import write_mean

from .conftest import DEPLOY, Cli, Result

TRAIN = ("train", "--solver", "solver.prototxt")
RESUME = (*TRAIN, "--max_iter=20", "--snapshot=run_iter_10.solverstate")
TUNE = (*TRAIN, "--weights=run_iter_10.caffemodel")
SCORE = ("test", "--model=net.prototxt", "--weights=run_iter_10.caffemodel")
TIME = ("time", "--model=net.prototxt", "--weights=run_iter_10.caffemodel")
WRITTEN: dict[str, bytes] = {}
"""The files that this training leaves."""
BUILT = "Memory for blobs and scratch"
"""What the log says of a net that was built."""


class Case(NamedTuple):
    """How to spoil a folder that would train: texts of the net to replace, fields of the solver,
    settings of `write_net`, or a function; what is run then, and words of the message."""

    name: str
    words: list[str]
    net: tuple[str, str] = ("", "")
    solver: str = ""
    settings: dict[str, str] | None = None
    spoil: Callable[[Cli], object] = lambda cli: None
    run: tuple[str, ...] = TRAIN


def trained(cli: Cli) -> None:
    """The folder is as after a training; there is one for all."""
    if not WRITTEN:
        cli.ok(*TRAIN)
        WRITTEN.update({path.name: path.read_bytes() for path in cli.folder.glob("run_iter_10.*")})
    for name, content in WRITTEN.items():
        (cli.folder / name).write_bytes(content)


def trained_otherwise(cli: Cli) -> None:
    trained(cli)
    cli.write_net(outputs=12)


def trained_by_another_solver(cli: Cli) -> None:
    trained(cli)
    cli.write_solver('type: "Adam"')


def cut(name: str) -> Callable[[Cli], object]:
    """A file of a training without its end."""

    def spoil(cli: Cli) -> None:
        trained(cli)
        file = cli.folder / name
        file.write_bytes(file.read_bytes()[:-1000])

    return spoil


def without_its_model(cli: Cli) -> None:
    trained(cli)
    (cli.folder / "run_iter_10.caffemodel").unlink()


def half_of_a_file(cli: Cli) -> None:
    file = cli.fixtures / "formats" / "h5lenet_iter_200.caffemodel.h5"
    (cli.folder / "half.caffemodel.h5").write_bytes(file.read_bytes()[:100_000])


def database(content: Callable[[bytes], bytes] = bytes) -> Callable[[Cli], object]:
    """The net reads a database "digits" whose file is changed so."""

    def spoil(cli: Cli) -> None:
        target = cli.folder / "digits"
        shutil.copytree(cli.fixtures / "formats" / "mnist200_lmdb", target)
        (target / "data.mdb").write_bytes(content((target / "data.mdb").read_bytes()))

    return spoil


def database_of(*records: bytes) -> Callable[[Cli], object]:
    def spoil(cli: Cli) -> None:
        with lmdb.open(str(cli.folder / "digits")) as made, made.begin(write=True) as transaction:
            for number, record in enumerate(records):
                transaction.put(str(number).encode(), record)

    return spoil


def small_mean(cli: Cli) -> None:
    write_mean(cli.folder / "mean.binaryproto", np.zeros((1, 20, 20), np.float32))


def crop_left_out_in_one_phase(cli: Cli) -> None:
    text = (cli.folder / "net.prototxt").read_text()
    data = text[text.index("layer {") : text.index('layer {\n  name: "ip"')]
    phases = (
        data.replace("layer {", "layer { include { phase: TRAIN }").replace(
            "transform_param {", "transform_param { crop_size: 20"
        ),
        data.replace("layer {", "layer { include { phase: TEST }"),
    )
    cli.write("net.prototxt", text.replace(data, "".join(phases)))


def list_that_is_a_folder(cli: Cli) -> None:
    text = (cli.folder / "net.prototxt").read_text().replace("backend: LMDB", "")
    cli.write("net.prototxt", text.replace("data_param", "image_data_param"))


def net_without_data(cli: Cli) -> None:
    cli.write("net.prototxt", DEPLOY)
    cli.write("solver.prototxt", 'net: "net.prototxt" base_lr: 1 lr_policy: "fixed"')


def of_text(name: str, text: str) -> Callable[[Cli], object]:
    return lambda cli: cli.write(name, text)


FIXTURE = str(Path(__file__).parent.parent / "fixtures/formats/lenet_iter_200.caffemodel")
DIGITS = {"source": "digits"}
MEAN = {"transform": 'mean_file: "mean.binaryproto"'}
LOSS = 'bottom: "ip" bottom: "%s" top: "loss"'
SUM = 'layer { name: "sum" type: "Eltwise" bottom: "ip" bottom: "data" top: "sum" }\n'

CASES = [
    Case("field", ["net.prototxt:9:", '"num_ouput"', '"num_output"'],
         ("num_output:", "num_ouput:")),
    Case("solver's field", ["solver.prototxt:", '"base_rl"', '"base_lr"'], solver="base_rl: 1"),
    Case("unfinished net", ["net.prototxt:1:"], spoil=of_text("net.prototxt", "layer { name: 'a'")),
    Case("layer type", ['"ip"', "InnerProdukt", "InnerProduct"],
         ('"InnerProduct"', '"InnerProdukt"')),
    Case("number in quotes", ["net.prototxt:", "write 10 without the quotes"],
         ("num_output: 10", 'num_output: "10"')),
    Case("crop left out", ['here "data" is 1x28x28 but 1x20x20 there', "crop_size"],
         spoil=crop_left_out_in_one_phase),
    Case("no max_iter", ["solver.prototxt: max_iter, how many", "is not given"],
         spoil=of_text("solver.prototxt", 'net: "net.prototxt" base_lr: 1 lr_policy: "fixed"')),
    Case("database as a model", ["digits: it is an LMDB, expected a file"],
         spoil=database(), run=("time", "--model", "digits")),
    Case("list that is a folder", ["cannot read the list of images", "lmdb: Is a directory"],
         ('type: "Data"', 'type: "ImageData"'), spoil=list_that_is_a_folder),
    Case("no such bottom", ['"ip"', '"dta"'], ('bottom: "data"', 'bottom: "dta"')),
    Case("too few bottoms", ['"loss"', "bottom"], (LOSS % "label", 'bottom: "label" top: "loss"')),
    Case("weights of another shape", ["run_iter_10.caffemodel", '"ip"', "12", "10", "784"],
         spoil=trained_otherwise, run=TUNE),
    Case("scoring them", ["run_iter_10.caffemodel", '"ip"', "12", "10", "784"],
         spoil=trained_otherwise, run=SCORE),
    Case("blobs of other shapes", ['"sum"', "8", "10", "28"],
         ('layer { name: "loss"', SUM + 'layer { name: "loss"')),
    Case("labels of another shape", ['"loss"', "8", "10", "28"], (LOSS % "label", LOSS % "data")),
    Case("no database", ["nowhere/digits"], settings={"source": "nowhere/digits"}),
    Case("empty folder", ["digits"], settings=DIGITS,
         spoil=lambda cli: (cli.folder / "digits").mkdir()),
    Case("empty database", ["digits", "no records"], settings=DIGITS, spoil=database_of()),
    Case("truncated database", ["digits", "truncated"], settings=DIGITS,
         spoil=database(lambda content: content[:50_000])),
    Case("database of garbage", ["digits"], settings=DIGITS,
         spoil=database(lambda content: b"no database" * 10_000)),
    Case("other records", ["digits"], settings=DIGITS, spoil=database_of(b"\xff\xffno datum")),
    Case("small mean", ["mean.binaryproto", "20", "28"], settings=MEAN, spoil=small_mean),
    Case("no mean", ["mean.binaryproto"], settings=MEAN),
    Case("corrupt mean", ["mean.binaryproto"], settings=MEAN,
         spoil=of_text("mean.binaryproto", "not a mean")),
    Case("large crop", ["crop_size", "40", "28"], settings={"transform": "crop_size: 40"}),
    Case("snapshot of another net",
         ["run_iter_10.solverstate", '"ip"', "(10, 784)", "(12, 784)"],
         spoil=trained_otherwise, run=RESUME),
    Case("snapshot of another solver", ["run_iter_10.solverstate", "Adam"],
         spoil=trained_by_another_solver, run=RESUME),
    Case("empty solver", ["solver.prototxt", "no settings"], spoil=of_text("solver.prototxt", "")),
    Case("no layer type", ['layer "ip": has no type'], ('type: "InnerProduct"', "")),
    Case("net without data", ["solver.prototxt", 'nothing fills its input "data"'],
         spoil=net_without_data),
    Case("communicator", ["--comm mpj", "choose one of auto, mpi"], run=(*TRAIN, "--comm=mpj")),
    Case("weights as a prototxt", ["lenet_iter_200.caffemodel", "text"],
         run=("test", "--model", FIXTURE, "--weights", FIXTURE)),
    Case("no solver", ["none.prototxt", "No such file"], run=("train", "--solver=none.prototxt")),
    Case("folder as a solver", ["."], run=("train", "--solver", ".")),
    Case("solver with no such net", ["none.prototxt"], solver='net: "none.prototxt"'),
    Case("solver without a net", ["solver.prototxt", "net"],
         spoil=of_text("solver.prototxt", 'base_lr: 1 lr_policy: "fixed" max_iter: 1')),
    Case("solver type", ["solver.prototxt", "SDG", "SGD"], solver='type: "SDG"'),
    Case("policy", ["solver.prototxt", "stp", "step"], solver='lr_policy: "stp"'),
    Case("snapshots into nowhere", ["solver.prototxt", "nowhere"],
         solver='snapshot_prefix: "nowhere/run"'),
    Case("log into a file", ["net.prototxt", "--log_dir"], run=(*TRAIN, "--log_dir=net.prototxt")),
    Case("events into a file", ["net.prototxt", "--tensorboard"],
         run=(*TRAIN, "--tensorboard=net.prototxt")),
    Case("gpu", ["needs CuPy", "osucaffe[cuda13]"], run=(*TRAIN, "--gpu=0")),
    Case("gpus", ["needs CuPy", "osucaffe[cuda13]"], run=(*TRAIN, "--gpu=0,1")),
    Case("no number of a gpu", ["--gpu first", "number"], run=(*TRAIN, "--gpu=first")),
    Case("no weights to test", ["--weights"], run=("test", "--model", "net.prototxt")),
    Case("upgrade to nowhere", ["nowhere"],
         run=("upgrade", "net", "net.prototxt", "nowhere/net.prototxt")),
    Case("mnist from an empty folder", ["train-images-idx3-ubyte"],
         run=("data", "mnist", "--files", ".")),
]  # fmt: skip

FILES = [
    Case("corrupt snapshot", ["run_iter_10.solverstate"], spoil=cut("run_iter_10.solverstate"),
         run=RESUME),
    Case("snapshot without its model", ["run_iter_10.caffemodel"], spoil=without_its_model,
         run=RESUME),
    Case("no snapshot", ["run_iter_10.solverstate"], run=RESUME),
    Case("truncated weights", ["run_iter_10.caffemodel"], spoil=cut("run_iter_10.caffemodel"),
         run=TUNE),
    Case("truncated HDF5", ["half.caffemodel.h5"], spoil=half_of_a_file,
         run=(*TRAIN, "--weights=half.caffemodel.h5")),
    Case("no weights", ["run_iter_10.caffemodel"], run=TUNE),
    Case("no weights of the solver", ["none.caffemodel"], solver='weights: "none.caffemodel"'),
    Case("truncated weights to test", ["run_iter_10.caffemodel"],
         spoil=cut("run_iter_10.caffemodel"), run=SCORE),
    Case("truncated weights to time", ["run_iter_10.caffemodel"],
         spoil=cut("run_iter_10.caffemodel"), run=TIME),
    Case("prototxt as weights", ["net.prototxt"], run=(*TRAIN, "--weights=net.prototxt")),
]  # fmt: skip
"""Weights and snapshots that cannot be read: that is said before any net is built."""


def message(result: Result) -> str:
    """What the program says beside its log lines: one line that begins with its name."""
    lines = [line for line in result.err.splitlines() if line[:1] not in "IW" or "] " not in line]
    assert result.code == 1, result.err
    assert len(lines) == 1, result.err
    assert lines[0].startswith("osucaffe: ")
    return lines[0]


@pytest.mark.parametrize("case", [*CASES, *FILES], ids=lambda case: case.name)
def test_bad_input_gives_one_message(cli: Cli, case: Case) -> None:
    cli.write_net()
    cli.write_solver(case.solver)
    old, new = case.net
    text = (cli.folder / "net.prototxt").read_text()
    assert old in text
    cli.write("net.prototxt", text.replace(old, new, 1))
    if case.settings:
        cli.write_net(**case.settings)
    case.spoil(cli)
    result = cli(*case.run)
    said = message(result)
    assert [word for word in case.words if word not in said] == [], said
    assert case not in FILES or BUILT not in result.err


def test_the_log_tells_of_a_net_that_was_built(cli: Cli) -> None:
    cli.write_net()
    assert BUILT in cli("time", "--model=net.prototxt", "--iterations=1").err


def test_a_traceback_is_shown_to_who_asks(cli: Cli) -> None:
    result = cli.fails("train", "--solver", "none.prototxt", OSUCAFFE_DEBUG="1")
    assert "Traceback" in result.err
    assert "none.prototxt" in result.err


def test_a_full_disk_is_no_traceback(cli: Cli) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            cli.command(["layers"]), env=cli.environment(), stdout=full, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "osucaffe: No space left on device\n"


def test_a_solver_that_states_gpu_is_told_where_it_runs(cli: Cli) -> None:
    cli.write_net()
    cli.write_solver("solver_mode: GPU\ndevice_id: 3")
    result = cli.ok(*TRAIN)
    assert "solver_mode is GPU" in result.err
    assert "add --gpu 3" in result.err


WRONG = 'layer { name: "x" type: "ReLU" bottom: "dta" top: "x" }'


def unknown_bottom_in_a_long_net(cli: Cli) -> tuple[str, ...]:
    layers = (
        f'layer {{ name: "{n}" type: "ReLU" bottom: "data" top: "{n}" }}' for n in range(2000)
    )
    (path := cli.folder / "net.prototxt").write_text("\n".join([path.read_text(), *layers, WRONG]))
    return TRAIN


def no_such_data_set_among_many(cli: Cli) -> tuple[str, ...]:
    with h5py.File(cli.folder / "x.h5", "w") as file:
        for number in range(1500):
            file[str(number)] = [1.0]
    cli.write("list.txt", "x.h5\n")
    layer = 'layer { name: "d" type: "HDF5Data" top: "x" hdf5_data_param { source: "list.txt" '
    cli.write("net.prototxt", layer + "batch_size: 1 } }")
    return TRAIN


def many_surplus_arguments(cli: Cli) -> tuple[str, ...]:
    return (*TRAIN, *(f"photo{number}.jpg" for number in range(1500)))


@pytest.mark.parametrize(
    ("spoil", "more"),
    [
        (unknown_bottom_in_a_long_net, "1,984 more"),
        (no_such_data_set_among_many, "1,480 more"),
        (many_surplus_arguments, "1,480 more"),
    ],
)
def test_long_lists_are_cut(cli: Cli, spoil: Callable[[Cli], tuple[str, ...]], more: str) -> None:
    cli.write_net()
    cli.write_solver()
    said = cli(*spoil(cli)).err
    assert f" and {more}" in said
    assert len(said) < 2000
