"""What is simulated is what is run: each operation, each wait, each message of four real ranks.

Nothing here depends on time, so it holds on any machine. How long it takes is compared with real
runs in test_between_hosts.py.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.prediction.bench_predict_cases import BUCKET, config_of
from benchmarks.prediction.bench_predict_training import net_param
from osucaffe.comm.tuning.table import Selection
from osucaffe.parallel.plan import Send, Wait
from osucaffe.study.cluster import Cluster, Device, Link
from osucaffe.study.iteration import DESIGNS
from osucaffe.study.messages import Planner
from osucaffe.study.script import Compute, Script, plan_of, write
from osucaffe.study.sketch import Sketch
from tests.comm.ranks import mpiexec, needs_mpi

from .noting import CASES

SIZE = 4


def events_of(script: Script) -> list[list[Any]]:
    """As the ranks note them: what an optimizer does is not."""
    found: list[list[Any]] = []
    numbers: dict[int, int] = {}
    for each in script:
        if isinstance(each, Compute):
            found.append([each.direction, each.layer])
        elif isinstance(each, Send):
            numbers[each.number] = len(numbers) + 1
            found.append(["post", each.operation, each.stop - each.start, 0])
        elif isinstance(each, Wait):
            found.append(["wait", numbers[each.number]])
    return found


def messages_of(planner: Planner, post: Send) -> list[list[list[list[int]]]]:
    """By rank what it sends and receives, sorted."""
    plan, scale = planner.plan(post.operation, post.stop - post.start)
    assert scale == 1
    found: list[list[list[list[int]]]] = [[[], []] for _ in range(SIZE)]
    for wave in plan:
        for source, target, nbytes in zip(wave.source, wave.target, wave.nbytes, strict=True):
            found[source][0].append([int(target), int(nbytes)])
            found[target][1].append([int(source), int(nbytes)])
    return [[sorted(way) for way in rank] for rank in found]


@needs_mpi
def test_four_ranks_do_what_is_simulated() -> None:
    run = mpiexec(SIZE, "-m", "tests.study.noting")
    assert run.returncode == 0, run.stderr
    noted = json.loads(run.stdout)
    link = Link(1.0, 1.0)
    for design, comm in CASES.items():
        made = Cluster("here", comm.group or SIZE, Device(), link, link)
        planner = Planner(made, SIZE, Selection())
        sketch = Sketch(net_param(), sizes=noted[design][0]["sizes"])
        config = config_of(DESIGNS[design], BUCKET)
        script = write(plan_of(sketch, config, planner, separable=True), sketch)
        posts = [each for each in script if isinstance(each, Send)]
        assert posts
        expected = [messages_of(planner, each) for each in posts]
        for number, rank in enumerate(noted[design]):
            assert rank["events"] == events_of(script), f"{design}, rank {number}"
            sent = [[sorted(way) for way in each] for each in rank["messages"]]
            assert sent == [each[number] for each in expected], f"{design}, rank {number}"
