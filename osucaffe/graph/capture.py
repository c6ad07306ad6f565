"""How the prepared calls of a net are run: as steps layer by layer, or all as one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from ..backends import primitives as ops
from ..backends.backend import Backend, Prepared
from ..backends.primitives.recording import Primitive
from ..backends.tensor import Run, sequence


class Mark(Primitive, abstract=True):
    """A place among the calls where something else runs."""


def by_layer(calls: Iterable[Prepared], layers: int) -> list[list[Run]]:
    """The steps of each of that many layers, by its position; at the end those of no layer."""
    steps: list[list[Run]] = [[] for _ in range(layers + 1)]
    for call, step in calls:
        steps[call.position].append(step)
    return steps


def run_at(steps: Mapping[int, Run], position: int) -> None:
    """Run the step of a layer, by its position, if there is one."""
    if position in steps:
        steps[position]()


def as_one(
    backend: Backend,
    begin: Run,
    forward: Sequence[Prepared],
    backward: Sequence[Prepared],
    layers: int,
    *,
    before: Mapping[int, Run],
    after: Mapping[int, Run],
    concurrent: Sequence[Run],
    last: Sequence[Run],
    enqueues: bool,
) -> Run:
    """A step that runs `begin` and all calls, which the backend may replay: see `Net.as_step`.

    layers: how many the net has.
    """
    if before:
        forward = _mark_forward(forward, before)
    if after:
        backward = _mark_backward(backward, layers, after)
    # Not ahead of forward: the first kernels of a graph wait for their launch as it is.
    calls = [*forward, *(_mark(step, overlap=True) for step in concurrent), *backward]
    feeds = [step for call, step in calls if ops.is_feed(call)]
    calls = [(call, step) for call, step in calls if not ops.is_feed(call)]
    hosted = any(
        isinstance(call, ops.Host) or (isinstance(call, ops.Collective) and call.blocks)
        for call, _ in calls
    )
    schedule, capture = backend.schedule, backend.capture
    if enqueues or hosted:
        steps = [*schedule(calls), *last]
        run = sequence(steps) if hosted else capture(steps)
    else:
        pieces = _split(calls)
        run = sequence([p if callable(p) else capture(schedule(p)) for p in pieces] + [*last])
    return sequence([begin, *feeds, run])


def _mark_forward(calls: Sequence[Prepared], before: Mapping[int, Run]) -> list[Prepared]:
    """The calls of forward, with the steps of `before` (by position) ahead of their layers'; a
    call of no layer comes after all of them."""
    due = sorted(before)
    marked = []
    for call, step in calls:
        while due and (call.position < 0 or due[0] <= call.position):
            marked.append(_mark(before[due.pop(0)]))
        marked.append((call, step))
    return marked + [_mark(before[position]) for position in due]


def _mark_backward(
    calls: Sequence[Prepared], layers: int, after: Mapping[int, Run]
) -> list[Prepared]:
    """The calls of backward, with the steps of `after` (by position) after their layers', and
    after what runs concurrently with these."""
    marked: list[Prepared] = []
    for position in reversed(range(layers)):
        marked += [(call, step) for call, step in calls if call.position == position]
        if position in after:
            marked.append(_mark(after[position], overlap=True))
    return marked


def _mark(step: Run, *, overlap: bool = False) -> Prepared:
    """A step among the calls. overlap: it runs after all calls so far, those that overlap others
    too, and nothing waits for it."""
    mark = Mark()
    mark.overlap = sys.maxsize if overlap else 0
    return mark, step


def _split(calls: Sequence[Prepared]) -> Iterator[list[Prepared] | Run]:
    """The calls between the marks, and the marks' steps."""
    for is_mark, group in groupby(calls, lambda prepared: isinstance(prepared[0], Mark)):
        if is_mark:
            yield from (step for _, step in group)
        else:
            yield list(group)
