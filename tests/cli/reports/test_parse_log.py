"""`osucaffe parse_log`: tables of our logs and of C++ Caffe's, and the plot."""

from __future__ import annotations

import csv

import pytest

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
