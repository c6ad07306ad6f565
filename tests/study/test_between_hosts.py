"""Predictions beside a real run: four ranks on hosts that are namespaces, whose layers sleep.

What others do on the machine changes what the run takes: with other work, there is no verdict."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.hosts import hosts
from benchmarks.prediction.bench_predict import BURST_KB, RATE, cluster_of
from benchmarks.prediction.bench_predict_training import (
    computed,
    in_the_run,
    net_param,
    predict,
    predict_asleep,
    seconds_of,
)
from benchmarks.rows import rows_of
from osucaffe.study.cluster import Cluster, Device, Link
from osucaffe.study.profiling.passes import Pass, Records
from osucaffe.study.sketch import Sketch
from tests.comm.ranks import needs_mpi

TRIES = 2


def test_each_rank_takes_its_own_times() -> None:
    begun, ready = 1.0, {5: 1.05, 3: 1.07}
    one = Pass(True, begun, forward=1.0, middle=1.03, backward=1.08, end=1.09, ready=ready)
    late = replace(one, middle=1.02, ready={5: 1.06, 3: 1.07})
    ranks = [Records(number, "", [each], [], []) for number, each in enumerate((one, late))]
    found = computed(ranks)
    assert found["ms"] == pytest.approx(90)
    assert found["forward"] == pytest.approx([30, 20])
    assert found["backward"] == {5: pytest.approx([20, 40]), 3: pytest.approx([20, 10])}
    assert found["update"] == pytest.approx([10, 10])
    # The slower of both in forward, backward and update, as they wait for one another once.
    sketch, link = Sketch(net_param()), Link(0.0, 1e9)
    made = Cluster("test", 2, Device(add_gb_s=1e9), link, link)
    times, used = in_the_run(seconds_of(sketch), found, made, len(sketch.arena))
    took = predict(sketch, times, used, 2, "all-reduce behind")
    assert took == pytest.approx(max(30 + 40, 20 + 50) + 10, rel=1e-3)


@pytest.mark.long
@needs_mpi
def test_iterations_take_what_is_predicted(tmp_path: Path) -> None:
    for _ in range(TRIES):
        with hosts(4, RATE, tmp_path, burst=f"{BURST_KB}kb") as made:
            if made is None:
                pytest.skip("no network namespaces here")
            found = rows_of(
                made.mpiexec(1, "-m", "benchmarks.prediction.bench_predict_training", timeout=900)
            )
        cluster = cluster_of(found, BURST_KB)
        asleep = predict_asleep(found["asleep"], cluster, 4)
        errors = {design: predicted / took - 1 for design, took, predicted in asleep}
        sizes = np.abs(list(errors.values()))
        if sizes.max() <= 0.05:
            return
    if os.getloadavg()[0] > len(os.sched_getaffinity(0)):
        pytest.skip(f"the machine has other work: {errors}")
    raise AssertionError(f"predicted beside measured: {errors}")
