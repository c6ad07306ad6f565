"""`make bench-kernels`: what each provider of convolutions and products is worth on one GPU.

A training iteration of each net, or a forward pass of a deploy net, is measured as it is. Then the
tuner's own timings tell what it would lose without a provider: over all calls, the best that
remains less the best of all. For that each provider's candidates are timed as if there were no
other, so that every provider is asked.

What stands alone is not in the table (LRN, pooling, updates ...): nothing is left without it.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from osucaffe.backends.cuda.autotune.choices import Choices
from osucaffe.backends.cuda.autotune.tuner import Timed, Tuner, signature
from osucaffe.backends.cuda.call import Candidate, Context, Provider
from osucaffe.errors import UserError

from .. import nets, results
from ..built import solver_settings
from . import gpu
from .bench_gpu import CASES as TRAINING
from .bench_gpu import PRECISIONS


class Case(NamedTuple):
    """A column of a table. forward: a pass of the deploy net, not an iteration of training."""

    model: str
    batch: int
    forward: bool = False

    @classmethod
    def of(cls, record: dict[str, Any]) -> Case:
        """That of what was measured."""
        return cls(record["model"], record["batch"], record.get("forward", False))


CASES = [
    *(Case(*each) for each in TRAINING),
    *(
        Case(model, batch, forward=True)
        for model in ("lenet", "caffenet", "googlenet", "vgg16", "resnet50")
        for batch in (1, 16)
    ),
]
Timings = Mapping[str, float]
"""Milliseconds of the best candidate of each provider, for one call."""

FAMILIES = {
    "all small_*": ("small_mma", "small_mma_wgrad"),
    "all by Hopper's instructions": ("implicit_gemm", "wgrad_tf32", "wgrad_16bit"),
    "all by space to depth": ("by space to depth",),
    "all fused by cuDNN": ("cudnn fused",),
    "all of cuDNN": ("cudnn",),
    "all own kernels": (
        "small_mma", "small_mma_wgrad", "implicit_gemm", "wgrad_tf32", "wgrad_16bit",
        "few_channels", "small product",
    ),
}  # fmt: skip
"""Providers that share code, and would go together: those whose names contain one of these."""
SECONDS = 0.5
"""How long iterations are measured."""
WORTH = 0.02
"""The part of an iteration that a provider is to save on some net."""


class Unwritten(Choices):
    """Choices of this process alone: nothing of other runs, and nothing for them."""

    def __init__(self) -> None:
        self._chosen = {}

    def put(self, key: str, choice: str, taken: float, known: Collection[str]) -> str:
        self._chosen[key] = choice, taken
        return choice


class Census(Tuner):
    """A tuner that asks every provider, and knows how long the best candidate of each takes."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend, "census")
        self._choices = Unwritten()
        self._timings: dict[str, Timings] = {}
        self.calls: list[Timings] = []
        """Of each call of the nets that was prepared, in order."""

    def begin(self, ctx: Context, providers: Sequence[Provider]) -> Any:
        if signature(ctx) not in self._begun:
            for provider in providers:
                if not provider.eager:
                    provider.build(ctx)
        return super().begin(ctx, providers)

    def fastest(self, ctx: Context, providers: Sequence[Provider]) -> Candidate:
        chosen = super().fastest(ctx, providers)
        if ctx.trial is None:  # not a part of what another provider tries
            self.calls.append(self._timings[signature(ctx)])
        return chosen

    def _time(self, ctx: Context, providers: Sequence[Provider]) -> list[Timed]:
        timed: list[Timed] = []
        failures: list[UserError] = []
        for provider in providers:
            try:
                timed += super()._time(ctx, [provider])
            except UserError as error:
                failures.append(error)
        if not timed:
            raise failures[-1]
        return timed

    def _agreeing(self, ctx: Context, timed: list[Timed]) -> list[Timed]:
        found = super()._agreeing(ctx, timed)
        best: dict[str, float] = {}
        for each in found:
            name = each.provider.name
            best[name] = min(best.get(name, each.milliseconds), each.milliseconds)
        self._timings[signature(ctx)] = best
        return found


def loss_without(calls: Sequence[Timings], gone: Callable[[str], bool]) -> dict[str, Any]:
    """What an iteration of these calls loses without some providers: milliseconds; calls that they
    serve best; and calls that nothing else computes, which are not in the milliseconds."""
    milliseconds, served, needed = 0.0, 0, 0
    for call in calls:
        left = [taken for name, taken in call.items() if not gone(name)]
        best = min(call, key=lambda name: call[name])
        served += gone(best)
        if not left:
            needed += 1
            continue
        milliseconds += min(left) - call[best]
    return {"milliseconds": round(milliseconds, 4), "serves": served, "needed": needed}


def losses(calls: Sequence[Timings]) -> dict[str, dict[str, Any]]:
    """What an iteration loses without each provider that these calls may have, and each family."""
    names = sorted({name for call in calls for name in call})
    found = {name: loss_without(calls, {name}.__contains__) for name in names}
    for family, words in FAMILIES.items():
        members = {name for name in names if any(word in name for word in words)}
        if len(members) > 1:
            found[family] = loss_without(calls, members.__contains__)
    return found


def _built(case: Case, backend: Any) -> Callable[[], None]:
    """What runs gpu.BLOCK iterations or passes of a case."""
    from osucaffe.net import Net
    from osucaffe.solvers import Solver

    if case.forward:
        parameter = nets.deploy_net(case.model, case.batch)
        net = Net(parameter, backend=backend, phase="TEST", inference=True)
    else:
        parameter = nets.training_net(case.model, case.batch)
        solver = Solver(solver_settings(parameter), backend)
        net = solver.net
    for name, values in nets.synthetic_batch(parameter).items():
        net.write(name, values)

    def run() -> None:
        if case.forward:
            for _ in range(gpu.BLOCK):
                net.forward()
        else:
            solver.step(gpu.BLOCK)
        backend.synchronize()

    return run


def measure(case: Case, precision: str, backend: Any) -> dict[str, Any]:
    """A case: an iteration's milliseconds, the sum of its tuned calls, and the losses."""
    start = time.perf_counter()
    backend.tuner.calls.clear()
    run = _built(case, backend)
    run()
    setup = time.perf_counter() - start
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) * gpu.BLOCK < SECONDS * 1e3:
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1e3 / gpu.BLOCK)
    calls = [dict(call) for call in backend.tuner.calls]
    return {
        **case._asdict(), "precision": precision, "date": results.today(),
        "iteration_ms": round(sorted(taken)[len(taken) // 2], 4),
        "calls_ms": round(sum(min(call.values()) for call in calls), 4),
        "setup_seconds": round(setup, 1), "losses": losses(calls), "calls": calls,
    }  # fmt: skip


def share(case: dict[str, Any], loss: dict[str, Any]) -> float:
    """The part of an iteration that is lost; infinite where something cannot be computed."""
    return float("inf") if loss["needed"] else loss["milliseconds"] / case["iteration_ms"]


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    cases = record["cases"]
    text = (
        f"# What each provider is worth\n\nWritten by `make bench-kernels` on {record['date']}: "
        f"{record['device']}; {', '.join(record['versions'])}.\n\nWhat a training iteration, "
        "or a forward pass of a deploy net, loses without a provider of convolutions and products: "
        "milliseconds, and the part of the iteration. It is the sum, over the tuned calls, of the "
        "best that remains less the best of "
        'all, by the tuner\'s timings of calls by themselves. "(n)": it is the best for n calls; '
        '-: it is none\'s; *: n calls that nothing else computes. "Most": the largest part. '
        f"{WORTH:.0%} of some net's iteration is what own code is to be worth.\n"
    )
    for precision in PRECISIONS:
        for forward, kind in (False, "training"), (True, "forward passes"):
            if found := [
                case
                for case in cases
                if case["precision"] == precision and Case.of(case).forward == forward
            ]:
                text += f"\n## {kind} in {precision}\n\n{_table(found)}\n"
    return text


def _table(cases: Sequence[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for case in cases for name in case["losses"]))
    most = {
        name: max(share(case, case["losses"][name]) for case in cases if name in case["losses"])
        for name in names
    }
    columns = ["left out", "most", *(f"{case['model']} {case['batch']}" for case in cases)]
    rows = [
        ["nothing: ms of an iteration", "", *(f"{case['iteration_ms']:.3f}" for case in cases)],
        ["of which tuned calls", "", *(f"{case['calls_ms']:.3f}" for case in cases)],
    ]
    for name in sorted(names, key=lambda name: -most[name]):
        largest = "needed" if most[name] == float("inf") else f"{most[name]:.1%}"
        rows.append([name, largest, *(_cell(case, case["losses"].get(name)) for case in cases)])
    return results.table(columns, rows)


def _cell(case: dict[str, Any], loss: dict[str, Any] | None) -> str:
    if loss is None:
        return ""
    if loss["needed"]:
        return f"* ({loss['needed']})"
    if not loss["serves"]:
        return "-"
    return f"{loss['milliseconds']:.3f}, {share(case, loss):.1%} ({loss['serves']})"


def main() -> None:
    """Measure all cases, write the results after each, print the table."""
    parser = results.parser(__doc__)
    parser.add_argument("--only", metavar="MODELS", help="the cases of these models, with commas")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="with commas")
    options = parser.parse_args()
    only = options.only.split(",") if options.only else [case.model for case in CASES]
    versions = gpu.versions()
    name = f"kernels-{results.slug(versions['device'])}-{results.today()}"
    found = {_place(case): case for case in results.earlier(name, options.out).get("cases", [])}
    path = options.out
    for precision in options.precisions.split(","):
        backend = _backend(precision)
        for case in CASES:
            if case.model not in only:
                continue
            measured = measure(case, precision, backend)
            _let_go(backend)
            found[_place(measured)] = measured
            record = {
                "date": results.today(), **versions,
                "cases": [each for _, each in sorted(found.items())],
            }  # fmt: skip
            path = results.write(name, record, render(record), options.out)
            print(
                f"{case} {precision}: {measured['iteration_ms']} ms, "
                f"{len(measured['calls'])} calls, {measured['setup_seconds']} s",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    print(path.read_text())


def _backend(precision: str) -> Any:
    """A GPU whose tuner keeps count. Nets share it: what is alike in two of them is timed once."""
    from osucaffe.backends.cuda import Cuda

    backend = Cuda(precision=precision)
    backend.tuner = Census(backend)
    return backend


def _let_go(backend: Any) -> None:
    """Give back the memory of a net that is gone."""
    gc.collect()
    backend.cupy.get_default_memory_pool().free_all_blocks()


def _place(case: dict[str, Any]) -> tuple[int, int]:
    """Where a case stands in the table; what is measured again replaces today's earlier one."""
    return PRECISIONS.index(case["precision"]), CASES.index(Case.of(case))


if __name__ == "__main__":
    main()
