"""Iterations that are timed, and predicted: of any solver, or of a net whose layers sleep.

These take a given time, and little of the cores. So others' work on the machine changes less of
what an iteration takes, and how far it is from its prediction is the error of the model of what
travels when, not of what computes how fast.

Ranks that run it print a line of JSON, the first of them: what `links` and `sleep` give.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import MpiJob, find_job
from osucaffe.comm.job.topology import Topology, discover
from osucaffe.comm.tuning.table import Selection
from osucaffe.parallel.batch import readers
from osucaffe.parallel.data_parallel import DataParallel
from osucaffe.parallel.plan import Note, Pass
from osucaffe.proto import caffe_pb2, parse_text, read_net, read_solver
from osucaffe.solvers import Solver
from osucaffe.study.cluster import Cluster
from osucaffe.study.iteration import DESIGNS, SERVED, Simulation
from osucaffe.study.profiling.passes import Profiled, Records, summarize
from osucaffe.study.servers.shards import Consistency
from osucaffe.study.servers.training import ServerDataParallel, assign_roles
from osucaffe.study.sketch import Sketch
from osucaffe.study.times import Seconds, sizes_of

from .bench_predict_cases import BUCKET, TRAINED, config_of
from .bench_predict_links import links

FORWARD, BACKWARD = 20e-3, 40e-3
"""Seconds of each layer with weights."""
WIDTHS = (800, 300, 300, 300, 300, 10)
"""Of its layers' inputs and outputs: 2 MB of weights."""
BATCH = 256
ITERATIONS = 12
_SPIN = 3e-4
"""Seconds before its end that a sleeper is awake: the system wakes it a little late."""


def net_param() -> caffe_pb2.NetParameter:
    """The net: fully connected layers on one invented record."""
    text = f"""name: "asleep"
layer {{ name: "data" type: "DummyData" top: "x0" top: "label"
  dummy_data_param {{ shape {{ dim: 1 dim: {WIDTHS[0]} }} shape {{ dim: 1 }} }} }}
"""
    for number, width in enumerate(WIDTHS[1:], 1):
        text += f"""layer {{ name: "ip{number}" type: "InnerProduct"
  bottom: "x{number - 1}" top: "x{number}" inner_product_param {{ num_output: {width} }} }}
"""
    text += f"""layer {{ name: "loss" type: "SoftmaxWithLoss"
  bottom: "x{len(WIDTHS) - 1}" bottom: "label" top: "loss" }}
"""
    return parse_text(text, caffe_pb2.NetParameter)


def seconds_of(sketch: Sketch) -> Seconds:
    """How long its layers take."""
    every = {"forward": FORWARD, "backward": BACKWARD}
    return {
        (way, number): took if layer.parameters else 0.0
        for number, layer in enumerate(sketch.layers)
        for way, took in every.items()
    }


def lenet(file: str) -> caffe_pb2.SolverParameter:
    """Its solver, with a batch that computes about as long as its gradients travel."""
    param = read_solver(file)
    net = read_net(param.net)
    for _, message in readers(net):
        message.batch_size = BATCH
    param.ClearField("net")
    param.net_param.CopyFrom(net)
    return param


class Sleeps(DataParallel):
    """The ranks of a job as a solver's group, where layers with weights sleep."""

    def _plan_pass(self, *, accumulate: bool, update: bool) -> Pass:
        """A layer sleeps behind what its forward waits for, and ahead of what its backward
        sends."""
        plan = super()._plan_pass(accumulate=accumulate, update=update)
        for number, layer in enumerate(self._solver.net.layers):
            if layer.parameters:
                plan.before.setdefault(number, []).append(Note(partial(_nap, FORWARD)))
                plan.after.setdefault(number, []).insert(0, Note(partial(_nap, BACKWARD)))
        return plan


class Asleep(Sleeps, Profiled):
    """Whose passes are timed."""


class AsleepServed(Sleeps, ServerDataParallel):
    """Whose weights parameter servers hold."""


def served(job: MpiJob, servers: int) -> dict[str, Any]:
    """By design, of the net whose layers sleep, the mean milliseconds of iterations of rank 0, and
    the sizes of its parameters."""
    found: dict[str, Any] = {}
    for design in SERVED:
        roles = assign_roles(job, servers, Consistency.parse("sync"))
        if roles.serves:
            roles.serve(Cpu(threads=1))
            continue
        topology, config = discover(roles.part), config_of(DESIGNS[design], BUCKET)
        param = caffe_pb2.SolverParameter(net_param=net_param(), base_lr=0, lr_policy="fixed")
        param.snapshot_after_train = False
        group = AsleepServed(roles, topology, CommConfig(), config)
        solver = Solver(param, Cpu(threads=1), group=group)
        solver.step(2)
        start = time.perf_counter()
        solver.step(ITERATIONS)
        took = 1e3 * (time.perf_counter() - start) / ITERATIONS
        found[design] = {"ms": took, "sizes": sizes_of(solver.net)}
        solver.close()
    return found


def predict_served(
    found: dict[str, Any], cluster: Cluster, ranks: int, servers: int
) -> Iterator[tuple[str, float, float]]:
    """Design, and milliseconds measured and predicted, of what `served` gave."""
    workers = ranks - servers
    hosts = cluster.server_hosts(str(servers), workers)
    for design, parts in found.items():
        sketch = Sketch(net_param(), sizes=parts["sizes"])
        simulation = Simulation(
            sketch, seconds_of(sketch), cluster, workers, Selection(), servers=hosts
        )
        took = simulation.predict(design, config_of(DESIGNS[design], BUCKET)).ms
        yield design, parts["ms"], took


def _nap(seconds: float) -> None:
    """Sleep so long."""
    end = time.perf_counter() + seconds
    time.sleep(seconds - _SPIN)
    while time.perf_counter() < end:
        pass


def train(
    job: Any,
    topology: Topology,
    param: caffe_pb2.SolverParameter,
    design: str,
    kind: type[Profiled] = Profiled,
    *,
    share: float = 0.0,
) -> dict[str, Any]:
    """Milliseconds of the fastest iteration (or of one that such a share are faster than), what
    each rank computed meanwhile, and the sizes of the net's parameters; nothing but on rank 0."""
    told: list[dict[str, Any]] = []

    def report(records: Sequence[Records]) -> None:
        lengths = [[each.end - each.begin for each in rank.passes] for rank in records]
        order = np.argsort(np.max(lengths, axis=0))
        at = order[int(share * len(order))]
        told.append(computed([replace(rank, passes=[rank.passes[at]]) for rank in records]))

    config = config_of(DESIGNS[design], BUCKET)
    group = kind(report, job, topology, CommConfig("mpi"), config)
    param.display = param.test_interval = param.snapshot = 0
    param.ClearField("test_iter")
    param.snapshot_after_train = False
    solver = Solver(param, Cpu(threads=1), group=group)
    solver.step(ITERATIONS)
    sizes = sizes_of(solver.net)
    solver.close()
    return told[0] | {"sizes": sizes} if told else {}


def computed(records: Sequence[Records]) -> dict[str, Any]:
    """Of one pass, in milliseconds: how long it took (the ranks' mean), and by rank what computing
    did: data and forward, backward by layer (with those above that have no weights), update."""
    ranks = [summarize([rank])["parts_ms"] for rank in records]
    backward: dict[int, list[float]] = {}
    for rank in records:
        before = rank.passes[0].middle
        for layer, ready in sorted(rank.passes[0].ready.items(), reverse=True):
            backward.setdefault(layer, []).append(1e3 * (ready - before))
            before = ready
    return {
        "ms": summarize(records)["wall_ms"],
        "forward": [parts["data"] + parts["forward"] for parts in ranks],
        "backward": backward,
        "update": [parts["update"] for parts in ranks],
    }


def sleep(job: Any, topology: Topology) -> dict[str, Any]:
    """By design what `train` says of the net whose layers sleep."""
    param = caffe_pb2.SolverParameter(net_param=net_param(), base_lr=0, lr_policy="fixed")
    return {design: train(job, topology, param, design, Asleep, share=0.1) for design in TRAINED}


def predict(sketch: Sketch, seconds: Seconds, cluster: Cluster, ranks: int, design: str) -> float:
    """Milliseconds of an iteration."""
    simulation = Simulation(sketch, seconds, cluster, ranks, Selection(), hierarchical=False)
    return simulation.predict(design, config_of(DESIGNS[design], BUCKET)).ms


def in_the_run(
    seconds: Seconds, found: dict[str, Any], cluster: Cluster, elements: int
) -> tuple[Seconds, Cluster]:
    """The layers' times (an array of the ranks' in the place of each), and the rate of updates, as
    they were while others communicated: see `computed`."""
    forward = sum(each for (way, _), each in seconds.items() if way == "forward")
    whole = np.array(found["forward"]) / 1e3
    took: Any = {
        (way, layer): each / forward * whole if way == "forward" else 0.0
        for (way, layer), each in seconds.items()
    }
    for layer, each in found["backward"].items():
        took["backward", int(layer)] = np.array(each) / 1e3
    rate = 5 * 4 * elements / np.mean(found["update"]) / 1e6
    device = replace(cluster.device, memory_gb_s=rate, stolen=0.0)  # what was lost is in the times
    return took, replace(cluster, device=device)


def predict_asleep(
    found: dict[str, Any], cluster: Cluster, ranks: int
) -> Iterator[tuple[str, float, float]]:
    """Design, and milliseconds measured and predicted, of what `sleep` gave."""
    cluster = replace(cluster, device=replace(cluster.device, held=0.0))
    for design, parts in found.items():
        sketch = Sketch(net_param(), sizes=parts["sizes"])
        times, made = in_the_run(seconds_of(sketch), parts, cluster, len(sketch.arena))
        yield design, parts["ms"], predict(sketch, times, made, ranks, design)


def main() -> None:
    """Measure and print. Arguments: how many ranks serve, if any do."""
    job = find_job()
    with job.together():
        topology = discover(job)
        found = links(job, topology)
        if sys.argv[1:]:
            assert isinstance(job, MpiJob)
            found["served"] = served(job, int(sys.argv[1]))
        else:
            found["asleep"] = sleep(job, topology)
        if job.rank == 0:
            print(json.dumps(found))


if __name__ == "__main__":
    main()
