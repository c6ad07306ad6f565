"""`osucaffe parse_log`: tables of our logs and of C++ Caffe's, and the plot."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from osucaffe.api.logs import parse

CAFFE = """\
Log file created at: 2016/12/31 23:59:50
Running on machine: host
Log line format: [IWEF]mmdd hh:mm:ss.uuuuuu threadid file:line] msg
I1231 23:59:50.500000  4711 caffe.cpp:251] Starting Optimization
I1231 23:59:51.000000  4711 solver.cpp:330] Iteration 0, Testing net (#0)
I1231 23:59:51.500000  4711 solver.cpp:397]     Test net output #0: accuracy = 0.1
I1231 23:59:51.500001  4711 solver.cpp:397]     Test net output #1: loss = 2.3 (* 1 = 2.3 loss)
I1231 23:59:52.000000  4711 solver.cpp:218] Iteration 0 (-1 iter/s, 1s/20 iters), loss = 2.4
I1231 23:59:52.000001  4711 solver.cpp:237]     Train net output #0: loss = 2.4 (* 1 = 2.4 loss)
I1231 23:59:52.000002  4711 sgd_solver.cpp:105] Iteration 0, lr = 0.01
W1231 23:59:53.000000  4711 other.cpp:1] Iteration of something else
I0101 00:00:10.500000  4711 solver.cpp:218] Iteration 20 (2 iter/s, 10s/20 iters), loss = nan
I0101 00:00:10.500001  4711 solver.cpp:237]     Train net output #0: loss = nan (* 1 = nan loss)
I0101 00:00:10.500002  4711 sgd_solver.cpp:105] Iteration 20, lr = 0.005
I0101 00:00:11.500000  4711 solver.cpp:330] Iteration 20, Testing net (#0)
I0101 00:00:11.500001  4711 solver.cpp:397]     Test net output #0: accuracy = 0.7
I0101 00:00:11.500002  4711 solver.cpp:397]     Test net output #1: loss = 0.5 (* 1 = 0.5 loss)
I0101 00:00:11.600000  4711 solver.cpp:330] Iteration 20, Testing net (#1)
I0101 00:00:11.600001  4711 solver.cpp:397]     Test net output #0: per_class = 0.25
I0101 00:00:11.600002  4711 solver.cpp:397]     Test net output #1: per_class = 0.75
"""


def one_log(*, line="{}", said="{}", iteration="Iteration {}", loss="2.5", rate="lr = {}"):
    """The lines of iterations 0 and 50 as a fork, or what starts it, writes them."""
    texts = []
    for number, value, step in (("0", loss, "0.01"), ("50", "1.5", "0.005")):
        begin = iteration.format(number)
        texts.append(f"{begin}, loss = 2.5")
        texts.append(f"    Train net output #0: loss = {value} (* 1 = 2.5 loss)")
        texts.append(f"{begin}, {rate.format(step)}")
    stamp = "I0605 10:00:00.500000  1000 solver.cpp:202] "
    return [line.format(stamp + said.format(text)) for text in texts]


def test_logs_of_forks_and_launchers():
    expected = [("0", 2.5, 0.01), ("50", 1.5, 0.005)]

    def rows(lines):
        return [
            (str(row["NumIters"]), row["loss"], row["LearningRate"]) for row in parse(lines).train
        ]

    plain = one_log()
    assert rows(plain) == expected
    nvidia = one_log(said="    [0.0] {}", rate="lr = {}, m = 0.9, lrm = 0.1, gs = 1")
    digits = one_log(iteration="Iteration {} (241.076/s)")
    for launched in ("[0] {}", "[1,0]<stderr>:{}", " 0: {}"):  # mpirun -l, --tag-output; srun -l
        assert rows(one_log(line=launched)) == expected
        other = one_log(line=launched.replace("0", "3"), loss="9")
        several = [
            line for pair in zip(one_log(line=launched), other, strict=True) for line in pair
        ]
        assert rows([other[0].replace("Iteration", "Began at"), *several]) == expected
    assert rows(nvidia) == rows(digits) == expected
    for number, value in (("1.#INF", "inf"), ("-1.#INF", "-inf"), ("-inf", "-inf")):
        assert rows(one_log(loss=number))[0][1] == float(value)
    for number in ("-1.#IND", "1.#QNAN", "-nan(ind)", "-nan"):  # Microsoft's C library
        assert np.isnan(rows(one_log(loss=number))[0][1])
    assert rows([*plain[:4], plain[4].partition("1.5")[0] + "1.2e-"]) == expected[:1]
    assert rows([*plain[:5], plain[5].replace("0.005", "1e-")]) == [expected[0], ("50", 1.5, 0.01)]


def table(path):
    with path.open() as file:
        return list(csv.reader(file))


def test_tables_of_a_log_of_caffe(cli):
    cli.write("caffe.log", CAFFE)
    cli.ok("parse_log", "caffe.log", "out")
    assert table(cli.folder / "out" / "caffe.log.train") == [
        ["NumIters", "Seconds", "LearningRate", "loss"],
        ["0", "1.500001", "0.01", "2.4"],
        ["20", "20.000001", "0.005", "nan"],
    ]
    assert table(cli.folder / "out" / "caffe.log.test") == [
        ["NumIters", "Seconds", "LearningRate", "accuracy", "loss"],
        ["0", "1", "0.01", "0.1", "2.3"],
        ["20", "21.000001", "0.005", "0.7", "0.5"],
    ]
    assert table(cli.folder / "out" / "caffe.log.test1") == [
        ["NumIters", "Seconds", "LearningRate", "per_class", "per_class[1]"],
        ["20", "21.100001", "0.005", "0.25", "0.75"],
    ]


def test_tables_and_plot_of_a_run(cli):
    pytest.importorskip("matplotlib")
    cli.write_net()
    cli.ok("train", "--solver", cli.write_solver(), "--log_dir", "logs")
    cli.ok("parse_log", "logs/osucaffe.INFO", "out", "--delimiter", ";", "--plot", "plot.svg")
    rows = (cli.folder / "out" / "osucaffe.INFO.train").read_text().splitlines()
    assert rows[0] == "NumIters;Seconds;LearningRate;loss"
    assert [row.split(";")[0] for row in rows[1:]] == ["0", "2", "4", "6", "8"]
    assert [row.split(";")[2] for row in rows[1:]] == ["0.1", "0.1", "0.05", "0.05", "0.025"]
    tests = (cli.folder / "out" / "osucaffe.INFO.test").read_text().splitlines()
    assert [row.split(";")[0] for row in tests[1:]] == ["0", "5", "10"]
    assert "<svg" in (cli.folder / "plot.svg").read_text()


def test_bad_input(cli):
    cli.write("empty.log", "nothing\n")
    assert "has no lines of a training run" in cli("parse_log", "empty.log", "out").err
    assert "none.log" in cli("parse_log", "none.log", "out").err
    cli.write("caffe.log", CAFFE)
    done = cli("parse_log", "caffe.log", "out", "--delimiter", "ab")
    assert "--delimiter: must be one character, not 'ab'" in done.err
    cli.write("taken", "")
    (cli.folder / "out" / "caffe.log.train").mkdir(parents=True)
    assert "cannot write it: Is a directory" in cli("parse_log", "caffe.log", "out").err
