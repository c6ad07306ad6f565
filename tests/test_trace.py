"""Traces: what is in the file, that spans nest, that tracing changes nothing."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from osucaffe import trace
from osucaffe.errors import UserError
from osucaffe.solvers.tracer import TRACED, WARM_UP, Tracer
from tests.solvers.runs import NET, assert_same, solver

LAYERS = ["data", "conv", "relu", "drop", "ip", "loss"]
SETTINGS = "momentum: 0.9 iter_size: 2"


def spans(path: Path) -> list[dict[str, Any]]:
    content = json.loads(path.read_text())
    return [event for event in content["traceEvents"] if event["ph"] == "X"]


def check_nesting(events: list[dict[str, Any]]) -> None:
    """On each track a span lies wholly within or wholly outside each other one."""
    ends: dict[int, list[float]] = {}
    slack = 1e-3  # a nanosecond: rounding
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        open_spans = ends.setdefault(event["tid"], [])
        while open_spans and open_spans[-1] <= event["ts"] + slack:
            open_spans.pop()
        end = event["ts"] + event["dur"]
        assert not open_spans or end <= open_spans[-1] + slack, event
        open_spans.append(end)


def traced(path: Path, *arguments: Any, iterations: int = 10, rank: int = 0, **options: Any) -> Any:
    """A run that was traced."""
    run = solver(*arguments, **options)
    run.tracer = Tracer(path, run.backend, rank=rank)
    run.step(iterations)
    return run


def test_a_traced_run_is_the_same_run_and_its_spans_nest(tmp_path: Path) -> None:
    plain, run = solver(SETTINGS), traced(tmp_path / "out.json", SETTINGS)
    plain.step(10)
    assert_same(plain, run)
    events = spans(tmp_path / "out.json")
    check_nesting(events)
    named = [(event["name"], event["cat"]) for event in events]
    assert [name for name, category in named if category == "iteration"] == [
        f"iteration {number}" for number in range(WARM_UP, WARM_UP + TRACED)
    ]
    passes = 2 * TRACED
    assert named.count(("data", "data")) == passes
    for layer in LAYERS[1:]:
        assert named.count((layer, "forward")) == named.count((layer, "backward")) == passes
    assert named.count(("update", "update")) == TRACED
    # Layers lie within their pass, passes within their iteration.
    for inner, outer in (("conv", "forward"), ("forward", "iteration 5")):
        child = next(e for e in events if (e["name"], e["cat"]) == (inner, "forward"))
        parent = next(e for e in events if e["name"] == outer)
        assert parent["ts"] <= child["ts"]
        assert child["ts"] + child["dur"] <= parent["ts"] + parent["dur"] + 1e-3


def test_layers_without_a_name_are_called_by_their_type(tmp_path: Path) -> None:
    net = NET.replace('name: "conv" ', "").replace('"drop"', '"relu"')
    traced(tmp_path / "out.json", "", net, iterations=1)
    names = [each["name"] for each in spans(tmp_path / "out.json") if each["cat"] == "forward"]
    assert names == ["forward", "(Convolution)", "relu", "relu", "ip", "loss", "total"]


def test_a_short_run_is_traced_from_its_start(tmp_path: Path) -> None:
    traced(tmp_path / "out.json", "", iterations=2, rank=1)
    events = spans(tmp_path / "out.rank1.json")
    assert [e["name"] for e in events if e["cat"] == "iteration"] == ["iteration 0", "iteration 1"]
    assert {event["pid"] for event in events} == {1}


def test_a_run_that_stops_writes_what_it_has(tmp_path: Path) -> None:
    run = solver("max_iter: 100", request=lambda: "stop" if run.iteration == WARM_UP else "none")
    run.tracer = Tracer(tmp_path / "out.json", run.backend)
    run.step(100)
    assert run.stopped
    run.tracer.write()
    assert "iteration 5" in [event["name"] for event in spans(tmp_path / "out.json")]


def test_spans_belong_to_the_trace_that_runs(tmp_path: Path) -> None:
    recorded = trace.Trace(tmp_path / "out.json")

    def elsewhere() -> None:
        with trace.span("thread", "test"):
            pass

    with trace.span("before", "test"):
        pass
    with recorded.running(), trace.span("outer", "test"):
        with trace.span("inner", "test"):
            pass
        thread = threading.Thread(target=elsewhere, name="other")
        thread.start()
        thread.join()
    recorded.write()
    events = {event["name"]: event for event in spans(tmp_path / "out.json")}
    assert set(events) == {"outer", "inner", "thread"}
    assert events["inner"]["tid"] == events["outer"]["tid"] != events["thread"]["tid"]
    check_nesting(list(events.values()))
    assert trace.span("after", "test") is trace.span("again", "test"), "off: nothing is made"


def test_ranges_of_nvtx_open_and_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(trace, "_find_nvtx", lambda: (heard.append, lambda: heard.append("end")))
    recorded = trace.Trace(tmp_path / "out.json")
    with recorded.span("outer", ""), recorded.span("inner", ""):
        pass
    assert heard == ["outer", "inner", "end", "end"]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"out\.json: cannot write it: No such file"):
        trace.Trace(tmp_path / "nowhere" / "out.json")
