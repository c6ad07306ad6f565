"""Tests that bad input gives one clear message and exit code 1, whatever part of it is bad."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osucaffe.proto import write_mean

from .conftest import DEPLOY, Cli, Result

TRAIN = ("train", "--solver", "solver.prototxt")
WRITTEN: dict[str, bytes] = {}
"""The files that this training leaves."""


def replace(cli: Cli, name: str, old: str, new: str) -> None:
    text = (cli.folder / name).read_text()
    assert old in text
    cli.write(name, text.replace(old, new, 1))


def trained(cli: Cli) -> None:
    """The folder is as after a training; there is one for all."""
    if not WRITTEN:
        assert cli(*TRAIN).code == 0
        WRITTEN.update({path.name: path.read_bytes() for path in cli.folder.glob("run_iter_10.*")})
    for name, content in WRITTEN.items():
        (cli.folder / name).write_bytes(content)


def copy_database(cli: Cli) -> Path:
    target = cli.folder / "digits"
    shutil.copytree(cli.fixtures / "formats" / "mnist200_lmdb", target)
    cli.write_net(source="digits")
    return target


# Each case spoils something in a folder that would train, and may return other arguments.


def unknown_field(cli: Cli) -> None:
    replace(cli, "net.prototxt", "num_output:", "num_ouput:")


def empty_solver(cli: Cli) -> None:
    cli.write("solver.prototxt", "")


def missing_layer_type(cli: Cli) -> None:
    replace(cli, "net.prototxt", 'type: "InnerProduct"', "")


def net_without_data(cli: Cli) -> None:
    cli.write("net.prototxt", DEPLOY)
    cli.write("solver.prototxt", 'net: "net.prototxt" base_lr: 1 lr_policy: "fixed"')


def unknown_communicator(cli: Cli) -> tuple[str, ...]:
    return (*TRAIN, "--comm=mpj")


def unknown_solver_field(cli: Cli) -> None:
    cli.write_solver("base_rl: 1")


def unfinished_net(cli: Cli) -> None:
    cli.write("net.prototxt", "layer { name: 'a'")


def unknown_layer_type(cli: Cli) -> None:
    replace(cli, "net.prototxt", '"InnerProduct"', '"InnerProdukt"')


def missing_bottom(cli: Cli) -> None:
    replace(cli, "net.prototxt", 'bottom: "data"', 'bottom: "dta"')


def too_few_bottoms(cli: Cli) -> None:
    replace(cli, "net.prototxt", 'type: "SoftmaxWithLoss" bottom: "ip"', 'type: "SoftmaxWithLoss"')


def weights_of_another_shape(cli: Cli) -> tuple[str, ...]:
    trained(cli)
    cli.write_net(outputs=12)
    return (*TRAIN, "--weights", "run_iter_10.caffemodel")


def scoring_weights_of_another_shape(cli: Cli) -> tuple[str, ...]:
    trained(cli)
    cli.write_net(outputs=12)
    return ("test", "--model", "net.prototxt", "--weights", "run_iter_10.caffemodel")


def blobs_of_other_shapes(cli: Cli) -> None:
    text = (cli.folder / "net.prototxt").read_text()
    cli.write(
        "net.prototxt",
        text + 'layer { name: "sum" type: "Eltwise" bottom: "ip" bottom: "data" top: "sum" }',
    )


def labels_of_another_shape(cli: Cli) -> None:
    replace(cli, "net.prototxt", 'bottom: "ip" bottom: "label" top: "loss"',
            'bottom: "ip" bottom: "data" top: "loss"')  # fmt: skip


def missing_database(cli: Cli) -> None:
    cli.write_net(source="nowhere/digits")


def empty_folder(cli: Cli) -> None:
    (cli.folder / "digits").mkdir()
    cli.write_net(source="digits")


def empty_database(cli: Cli) -> None:
    import lmdb

    lmdb.open(str(cli.folder / "digits")).close()
    cli.write_net(source="digits")


def truncated_database(cli: Cli) -> None:
    file = copy_database(cli) / "data.mdb"
    file.write_bytes(file.read_bytes()[:50_000])


def database_of_garbage(cli: Cli) -> None:
    file = copy_database(cli) / "data.mdb"
    file.write_bytes(b"no database" * 10_000)


def database_of_other_records(cli: Cli) -> None:
    import lmdb

    with lmdb.open(str(cli.folder / "digits")) as environment, environment.begin(write=True) as t:
        t.put(b"0", b"\xff\xffno datum")
    cli.write_net(source="digits")


def mean_of_the_wrong_size(cli: Cli) -> None:
    write_mean(cli.folder / "mean.binaryproto", np.zeros((1, 20, 20), np.float32))
    cli.write_net(transform='mean_file: "mean.binaryproto"')


def missing_mean(cli: Cli) -> None:
    cli.write_net(transform='mean_file: "mean.binaryproto"')


def corrupt_mean(cli: Cli) -> None:
    cli.write("mean.binaryproto", "not a mean")
    cli.write_net(transform='mean_file: "mean.binaryproto"')


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


def solver_without_max_iter(cli: Cli) -> None:
    replace(cli, "solver.prototxt", "max_iter: 10", "")


def number_in_quotes(cli: Cli) -> None:
    replace(cli, "net.prototxt", "num_output: 10", 'num_output: "10"')


def database_as_a_model(cli: Cli) -> tuple[str, ...]:
    copy_database(cli)
    return ("time", "--model", "digits")


def list_that_is_a_folder(cli: Cli) -> None:
    replace(cli, "net.prototxt", 'type: "Data"', 'type: "ImageData"')
    replace(cli, "net.prototxt", "data_param {", "image_data_param {")
    replace(cli, "net.prototxt", "backend: LMDB", "")


def crop_too_large(cli: Cli) -> None:
    cli.write_net(transform="crop_size: 40")


def snapshot_of_another_net(cli: Cli) -> tuple[str, ...]:
    trained(cli)
    cli.write_net(outputs=12)
    return (*TRAIN, "--max_iter=20", "--snapshot=run_iter_10.solverstate")


def snapshot_of_another_solver(cli: Cli) -> tuple[str, ...]:
    trained(cli)
    cli.write_solver('type: "Adam"')
    return (*TRAIN, "--max_iter=20", "--snapshot=run_iter_10.solverstate")


def weights_as_prototxt(cli: Cli) -> tuple[str, ...]:
    model = cli.fixtures / "formats" / "lenet_iter_200.caffemodel"
    return ("test", "--model", str(model), "--weights", str(model))


def missing_solver(cli: Cli) -> tuple[str, ...]:
    return ("train", "--solver", "none.prototxt")


def folder_as_solver(cli: Cli) -> tuple[str, ...]:
    return ("train", "--solver", ".")


def solver_with_a_missing_net(cli: Cli) -> None:
    cli.write_solver('net: "none.prototxt"')


def solver_without_a_net(cli: Cli) -> None:
    cli.write("solver.prototxt", 'base_lr: 1 lr_policy: "fixed" max_iter: 1')


def unknown_solver_type(cli: Cli) -> None:
    cli.write_solver('type: "SDG"')


def unknown_policy(cli: Cli) -> None:
    cli.write_solver('lr_policy: "stp"')


def snapshots_into_nowhere(cli: Cli) -> None:
    cli.write_solver('snapshot_prefix: "nowhere/run"')


def log_into_a_file(cli: Cli) -> tuple[str, ...]:
    return (*TRAIN, "--log_dir=net.prototxt")


def events_into_a_file(cli: Cli) -> tuple[str, ...]:
    return (*TRAIN, "--tensorboard=net.prototxt")


def gpu(cli: Cli) -> tuple[str, ...]:
    return (*TRAIN, "--gpu=0")


def gpus(cli: Cli) -> tuple[str, ...]:
    return (*TRAIN, "--gpu=0,1")


def no_gpu_number(cli: Cli) -> tuple[str, ...]:
    return (*TRAIN, "--gpu=first")


def no_weights_to_test(cli: Cli) -> tuple[str, ...]:
    return ("test", "--model", "net.prototxt")


def upgrade_to_nowhere(cli: Cli) -> tuple[str, ...]:
    return ("upgrade", "net", "net.prototxt", "nowhere/net.prototxt")


def mnist_from_an_empty_folder(cli: Cli) -> tuple[str, ...]:
    return ("data", "mnist", "--files", ".")


Spoil = Callable[[Cli], tuple[str, ...] | None]

CASES: list[tuple[Spoil, list[str]]] = [
    (unknown_field, ["net.prototxt:9:", '"num_ouput"', '"num_output"']),
    (unknown_solver_field, ["solver.prototxt:", '"base_rl"', '"base_lr"']),
    (unfinished_net, ["net.prototxt:1:"]),
    (unknown_layer_type, ['"ip"', "InnerProdukt", "InnerProduct"]),
    (number_in_quotes, ["net.prototxt:", "write 10 without the quotes"]),
    (crop_left_out_in_one_phase, ['here "data" is 1x28x28 but 1x20x20 there', "crop_size"]),
    (solver_without_max_iter, ["solver.prototxt: max_iter, how many", "is not given"]),
    (database_as_a_model, ["digits: it is an LMDB, but a file is wanted"]),
    (list_that_is_a_folder, ["cannot read the list of images", "lmdb: Is a directory"]),
    (missing_bottom, ['"ip"', '"dta"']),
    (too_few_bottoms, ['"loss"', "bottom"]),
    (weights_of_another_shape, ["run_iter_10.caffemodel", '"ip"', "12", "10", "784"]),
    (scoring_weights_of_another_shape, ["run_iter_10.caffemodel", '"ip"', "12", "10", "784"]),
    (blobs_of_other_shapes, ['"sum"', "8", "10", "28"]),
    (labels_of_another_shape, ['"loss"', "8", "10", "28"]),
    (missing_database, ["nowhere/digits"]),
    (empty_folder, ["digits"]),
    (empty_database, ["digits", "no records"]),
    (truncated_database, ["digits", "truncated"]),
    (database_of_garbage, ["digits"]),
    (database_of_other_records, ["digits"]),
    (mean_of_the_wrong_size, ["mean.binaryproto", "20", "28"]),
    (missing_mean, ["mean.binaryproto"]),
    (corrupt_mean, ["mean.binaryproto"]),
    (crop_too_large, ["crop_size", "40", "28"]),
    (snapshot_of_another_net, ["run_iter_10.solverstate", '"ip"', "(10, 784)", "(12, 784)"]),
    (snapshot_of_another_solver, ["run_iter_10.solverstate", "Adam"]),
    (empty_solver, ["solver.prototxt", "no settings"]),
    (missing_layer_type, ['layer "ip": has no type']),
    (net_without_data, ["solver.prototxt", 'nothing fills its input "data"']),
    (unknown_communicator, ["--comm mpj", "choose one of auto, mpi"]),
    (weights_as_prototxt, ["lenet_iter_200.caffemodel", "text"]),
    (missing_solver, ["none.prototxt", "No such file"]),
    (folder_as_solver, ["."]),
    (solver_with_a_missing_net, ["none.prototxt"]),
    (solver_without_a_net, ["solver.prototxt", "net"]),
    (unknown_solver_type, ["solver.prototxt", "SDG", "SGD"]),
    (unknown_policy, ["solver.prototxt", "stp", "step"]),
    (snapshots_into_nowhere, ["solver.prototxt", "nowhere"]),
    (log_into_a_file, ["net.prototxt", "--log_dir"]),
    (events_into_a_file, ["net.prototxt", "--tensorboard"]),
    (gpu, ["needs CuPy", "osucaffe[cuda13]"]),
    (gpus, ["needs CuPy", "osucaffe[cuda13]"]),
    (no_gpu_number, ["--gpu first", "number"]),
    (no_weights_to_test, ["--weights"]),
    (upgrade_to_nowhere, ["nowhere"]),
    (mnist_from_an_empty_folder, ["train-images-idx3-ubyte"]),
]


def message(result: Result) -> str:
    """What the program says beside its log lines: one line that begins with its name."""
    lines = [line for line in result.err.splitlines() if line[:1] not in "IW" or "] " not in line]
    assert result.code == 1, result.err
    assert len(lines) == 1, result.err
    assert lines[0].startswith("osucaffe: ")
    return lines[0]


@pytest.mark.parametrize(("spoil", "words"), CASES, ids=[case[0].__name__ for case in CASES])
def test_bad_input_gives_one_message(cli: Cli, spoil: Spoil, words: list[str]) -> None:
    cli.write_net()
    cli.write_solver()
    arguments = spoil(cli) or TRAIN
    said = message(cli(*arguments))
    assert [word for word in words if word not in said] == [], said


def test_a_traceback_is_shown_to_who_asks(cli: Cli) -> None:
    result = cli("train", "--solver", "none.prototxt", OSUCAFFE_DEBUG="1")
    assert result.code == 1
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
    result = cli(*TRAIN)
    assert result.code == 0
    assert "solver_mode is GPU" in result.err
    assert "add --gpu 3" in result.err
