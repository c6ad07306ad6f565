"""Tests of training, testing and timing with the real program."""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest

from osucaffe.solvers.snapshots import claim

from ..conftest import Cli

# What Caffe's parse_log.py looks for in a line, in turn.
ITERATION = re.compile(r"Iteration (\d+)")
RATE = re.compile(r", lr = ([-+]?[0-9]*\.?[0-9]+([eE]?[-+]?[0-9]+)?)")
TRAIN_OUTPUT = re.compile(r"Train net output #(\d+): (\S+) = ([\.\deE+-]+)")
TEST_OUTPUT = re.compile(r"Test net output #(\d+): (\S+) = ([\.\deE+-]+)")
SPEED = re.compile(r"Iteration (\d+) \((\S+) iter/s, (\S+)s/(\d+) iters\), loss = (\S+)$")


def parse(log: str) -> dict[str, list[tuple[int, str, float]]]:
    """Read a log as Caffe's script does: values of outputs and rates by iteration."""
    found: dict[str, list[tuple[int, str, float]]] = {"train": [], "test": [], "rate": []}
    iteration = -1
    for line in log.splitlines():
        assert re.match(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [\w.]+:\d+\] ", line), line
        if match := ITERATION.search(line):
            iteration = int(match[1])
        if iteration == -1:
            continue
        if match := RATE.search(line):
            found["rate"].append((iteration, "lr", float(match[1])))
        for kind, pattern in (("train", TRAIN_OUTPUT), ("test", TEST_OUTPUT)):
            if match := pattern.search(line):
                found[kind].append((iteration, match[2], float(match[3])))
    return found


def test_a_log_can_be_read_by_the_tools_of_caffe(ready: Cli) -> None:
    result = ready.ok("train", "-solver", "solver.prototxt", "--log_dir", "logs")
    assert result.out == ""
    rows = json.loads(ready("parse_log", "logs/osucaffe.INFO", "--json").out)
    assert [row["NumIters"] for row in rows["train"]] == [0, 2, 4, 6, 8]
    assert [row["NumIters"] for row in rows["tests"]["0"]] == [0, 5, 10]
    assert "FOLDER" in ready("parse_log", "logs/osucaffe.INFO").err
    found = parse(result.err)
    assert [value for value in found["rate"] if value[0] in (0, 4, 8)] == [
        (0, "lr", 0.1),
        (4, "lr", 0.05),
        (8, "lr", 0.025),
    ]
    assert [at for at, name, _ in found["train"] if name == "loss"] == [0, 2, 4, 6, 8]
    assert [(at, name) for at, name, _ in found["test"]] == [
        (at, name) for at in (0, 5, 10) for name in ("accuracy", "loss")
    ]
    assert found["test"][-1][2] < found["test"][1][2]
    assert sum(bool(SPEED.search(line)) for line in result.err.splitlines()) == 5
    for phrase in (
        "] Solving tiny",
        "] Iteration 0, Testing net (#0)",
        "]     Test net output #0: accuracy = ",
        "]     Train net output #0: loss = ",
        "] Snapshotting to binary proto file run_iter_10.caffemodel",
        "] Snapshotting solver state to binary proto file run_iter_10.solverstate",
        "] Optimization Done.",
    ):
        assert phrase in result.err
    written = (ready.folder / "logs" / "osucaffe.INFO").read_text()
    assert written.split("msg\n", 1)[1] == result.err


def test_it_goes_on_from_a_snapshot_as_if_it_had_not_stopped(ready: Cli) -> None:
    ready.write_solver("snapshot: 2")
    command = "train", "--solver=solver.prototxt"
    ready.ok(*command)
    whole = (ready.folder / "run_iter_10.caffemodel").read_bytes()
    again = ready.ok(*command, "--snapshot=auto")
    assert "already at iteration 10 of max_iter 10: nothing left to train" in again.err
    assert "Optimization" not in again.err
    for path in ready.folder.glob("run_iter_[81]*"):
        path.unlink()
    resumed = ready.ok(*command, "-snapshot=auto")  # the newest
    assert "run_iter_6.solverstate" in resumed.err
    assert "Iteration 4," not in resumed.err
    assert (ready.folder / "run_iter_10.caffemodel").read_bytes() == whole
    ready.ok(*command, "--snapshot=run_iter_10.solverstate", "--max_iter=12")


def test_it_fine_tunes_from_several_files(ready: Cli) -> None:
    ready.ok("train", "--solver=solver.prototxt")
    result = ready.ok(
        "train",
        "--solver=solver.prototxt",
        "--weights=run_iter_10.caffemodel,run_iter_10.caffemodel",
    )
    first = next(value for at, name, value in parse(result.err)["test"] if name == "accuracy")
    assert first > 0.4
    assert result.err.count("Finetuning from run_iter_10.caffemodel") == 2


@pytest.mark.parametrize(
    ("iterations", "read"),
    [((), "29 iterations: each of 200 records, and 3 again"), (("--iterations=40",), "80 again"),
     (("--iterations=3",), "21 of 200 records, each once")],
)  # fmt: skip
def test_test_counts_each_record_once(ready: Cli, iterations: tuple[str, ...], read: str) -> None:
    ready.ok("train", "--solver=solver.prototxt")
    net = (ready.folder / "net.prototxt").read_text().replace("batch_size: 8", "batch_size: 7")
    words = ready.write("seven.prototxt", net), "--weights", "run_iter_10.caffemodel"
    result = ready.ok("test", "--model", *words, "--predictions=all.csv", *iterations)
    assert read in result.err
    with (ready.folder / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert (
        len({row["file"] for row in rows}) == len(rows) == (21 if "=3" in str(iterations) else 200)
    )
    right = sum(row["class"] == row["predicted"] for row in rows)
    assert f"right: {right} of {len(rows)} records (95 % confidence: " in result.out
    found = json.loads(ready.ok("test", "--model", *words, "--json", *iterations).out)
    assert found["accuracy"] == right / len(rows)
    for one in found["classes"]:
        made = [row for row in rows if row["predicted"] == one["name"]]
        there = [row for row in rows if row["class"] == one["name"]]
        both = [row for row in made if row in there]
        assert one["records"] == len(there)
        assert one["recall"] == (pytest.approx(len(both) / len(there)) if there else None)
        assert one["precision"] == (pytest.approx(len(both) / len(made)) if made else None)


def test_test_prints_each_batch_and_the_means(ready: Cli) -> None:
    ready.ok("train", "--solver=solver.prototxt")
    words = "-model", "net.prototxt", "-weights", "run_iter_10.caffemodel", "-iterations", "4"
    result = ready.ok("test", *words, "--json")
    batches = re.findall(r"\] Batch (\d), accuracy = (\S+)$", result.err, re.M)
    assert [number for number, _ in batches] == list("0123")
    found = json.loads(result.out)
    values = {each["name"]: each["value"] for each in found["outputs"]}
    assert (found["iterations"], values.keys()) == (4, {"accuracy", "loss"})
    assert values["accuracy"] == pytest.approx(np.mean([float(value) for _, value in batches]))
    assert found["loss"] == pytest.approx(values["loss"])
    assert f"] accuracy = {values['accuracy']:g}" in result.err
    assert re.search(r"\] Loss: \d", result.err)
    assert re.search(r"\] First two batches, with preparation: \S+ s$", result.err, re.M)
    assert re.search(r"\] All 4 batches: \S+ s$", result.err, re.M)
    assert re.search(r"\] loss = (\S+) \(\* 1 = \1 loss\)$", result.err, re.M)


def test_layers_without_a_name_or_with_the_same_are_timed_and_scored(ready: Cli) -> None:
    """Nothing depends on names: the same scores, and each layer's own operations."""
    net = (ready.folder / "net.prototxt").read_text()
    ready.ok("train", "--solver=solver.prototxt")
    weights = "--weights=run_iter_10.caffemodel"
    named = ready("test", "--model=net.prototxt", "--iterations=3", weights)
    for name in ("data", "accuracy"):
        net = net.replace(f'name: "{name}" type', "type")
    ready.write("net.prototxt", net.replace('name: "loss" type', 'name: "ip" type'))
    result = ready("test", "--model=net.prototxt", "--iterations=3", weights)
    assert "run_iter_10.caffemodel: 1 of 1 layers with weights loaded\n" in result.err
    scores = [re.findall(r"(\w+ = \S+)", each.err) for each in (named, result)]
    assert len(scores[0]) >= 8
    assert scores[0] == scores[1]
    timed = ready.ok("time", "--model=net.prototxt", "--iterations=2")
    for way in ("forward", "backward"):
        assert re.search(rf"\] +\(Data\)\t{way}: \S+ ms\.", timed.err)
    operations = re.findall(r"\] +ip\tforward: \S+ ms\. \((\S+) MFLOP", timed.err)
    assert len(operations) == 2  # of the inner product, and of the loss
    assert float(operations[0]) == pytest.approx((2 * 8 * 784 * 10 + 80) / 1e6, rel=0.01)


def test_time_prints_every_layer(ready: Cli) -> None:
    result = ready.ok("time", "--model=net.prototxt", "--iterations=2", "--json")
    found = json.loads(result.out)
    rows = {row["name"]: row for row in found["layers"]}
    # 8 images of 784 values to 10 outputs, and the bias.
    assert rows["ip"]["forward"]["flops"] == 8 * 10 * (2 * 784 + 1)
    assert rows["ip"]["forward"]["milliseconds"] > 0
    assert found["memory"]["parameters"] >= 4 * 7850
    for way in ("forward", "backward"):
        for layer in ("data", "ip", "loss"):
            assert re.search(rf"\] +{layer}\t{way}: \S+ ms\.", result.err)
    assert f"{(2 * 8 * 784 * 10 + 80) / 1e6:.3g} MFLOP" in result.err
    for phrase in ("Forward pass", "Backward pass", "Forward-Backward"):
        assert re.search(rf"\] Average {phrase}: \S+ ms\.", result.err)
    assert re.search(
        r"\] Rates of the device: \S+ TFLOP/s \(matrix product\), \S+ GB/s", result.err
    )
    assert re.search(r"\] +ip\tforward: .* floor \S+ ms \(\d+%\)", result.err)
    for computed in "forward", "weight gradient":
        assert re.search(rf"\] +ip\t{computed} by (oneDNN: \S+|NumPy)$", result.err, re.MULTILINE)
    assert re.search(r"\] Whole iteration, as training runs it: \S+ ms", result.err)
    parameters, shared, unshared = (
        float(re.search(rf"(\S+) MB  {words}", result.err)[1])  # type: ignore[index]
        for words in ("parameters", "blobs, their gradients and scratch", "the same if nothing")
    )
    assert parameters >= 4 * 7850 / 1e6
    assert 0 < shared <= unshared


def test_a_trace_of_a_run(ready: Cli) -> None:
    # Batches made ahead by threads could all be made before or behind the traced iterations.
    net = (ready.folder / "net.prototxt").read_text()
    ready.write("net.prototxt", net.replace("batch_size: 8", "batch_size: 8 prefetch: 0"))
    result = ready.ok("train", "--solver=solver.prototxt", "--trace=out.json")
    assert "] Trace of iterations 5 to 7, which ran step by step: out.json" in result.err
    events = json.loads((ready.folder / "out.json").read_text())["traceEvents"]
    found = {(event["name"], event.get("cat")) for event in events}
    assert {("data", "data"), ("ip", "forward"), ("ip", "backward"), ("update", "update")} < found
    assert ("make a batch", "data") in found
    result = ready.fails("train", "--solver=solver.prototxt", "--trace=nowhere/out.json")
    assert "nowhere/out.json: cannot write it: No such file" in result.err


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_signals_do_what_the_flags_say(
    ready: Cli, monkeypatch: pytest.MonkeyPatch, signal_number: signal.Signals
) -> None:
    effects = ("-sigint_effect=snapshot", "-sighup_effect=stop")
    program = ready.train_without_end("train", "-solver=solver.prototxt", *effects)
    if signal_number == signal.SIGTERM:  # meanwhile, another run with its prefix is told
        monkeypatch.setattr(claim, "_PATIENCE", 0.0)
        result = ready.fails("train", "--solver=solver.prototxt")
        assert "solver.prototxt: another training writes snapshots with snapshot_p" in result.err
        assert f"(process {program.pid} on {platform.node()}): let it end, or give" in result.err
    program.send_signal(signal_number)
    if signal_number == signal.SIGINT:
        for line in program.stderr:
            if "Snapshotting solver state" in line:
                break
        assert any("Iteration" in line for line in program.stderr)  # it goes on
        program.send_signal(signal.SIGHUP)
        signal_number = signal.SIGHUP
    rest = program.communicate(timeout=300)[0] or ""
    assert program.returncode == 128 + signal_number
    assert list(ready.folder.glob("run_iter_*.solverstate")), rest
    assert not list(ready.folder.glob(".*"))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers without end are the case
def test_a_run_that_diverged_ends_with_3(ready: Cli) -> None:
    ready.write_solver("base_lr: 1e38")
    result = ready("train", "--solver=solver.prototxt")
    diverged = r"Training has diverged: the loss is \S+ at iteration (\d+) \(exit code 3\)"
    assert result.code == 3, result.err
    assert "Lower base_lr" in result.err
    assert int(re.findall(diverged, result.err)[0]) < 9
    assert not [*ready.folder.glob("run_iter*")]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = ready("train", "--solver=solver.prototxt", "--on_nan=continue")
    assert result.code == 3, result.err
    assert re.findall(diverged, result.err) == ["10"]
    # So do those who would go on from its end.
    result = ready("train", "--solver=solver.prototxt", "--snapshot=auto")
    assert result.code == 3, result.err
    assert "nothing left" in result.err


def test_a_full_disk_ends_the_event_file_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from osucaffe.cli.train.tensorboard import TensorBoard
    from osucaffe.solvers.observer import Output, TestResult

    result = TestResult(3, 0, [Output(0, "loss", 0.5)])
    with TensorBoard(str(tmp_path)) as board, open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), board._file._writer.fileno())
        board.on_test(result)
        board.on_test(result)
    (told,) = caplog.messages
    assert "events.out.tfevents" in told
    assert told.endswith("cannot be written any more: No space left on device")
