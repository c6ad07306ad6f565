"""The file that counts which nets were compared, in which configurations, and what failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import results

from .compare import FACTOR

if TYPE_CHECKING:
    from .__main__ import Search


def text(search: Search, seconds: float) -> str:
    """The counts: nets, values by configuration, nets by layer type, failures."""
    workers = search.args.workers
    rate = search.nets / max(seconds, 1e-9)
    values = results.table(
        ("configuration", "values compared"),
        [[name, f"{count:,}"] for name, count in search.compared.items()],
    )
    types = results.table(
        ("layer type", "nets"),
        [[name, f"{count:,}"] for name, count in sorted(search.types.items())],
    )
    explained = ", ".join(f"{name} {count:,}" for name, count in search.explained.items())
    failed = "".join(
        f"\n- {sort}: {len(numbers)} (net {numbers[0]})" for sort, numbers in search.failed.items()
    )
    return (
        f"{search.nets:,} nets of seed {search.args.seed} in {seconds:.0f} s: {rate:.1f} a second, "
        f"{rate / workers:.1f} a worker. Values beyond their tolerance that were explained: "
        f"{explained or 'none'}.\n\n{values}\n\n{types}\n\n"
        f"Failed: {failed or 'none'}\n"
    )


def write(search: Search, seconds: float) -> str:
    """Write it to benchmarks/results. Returns the file's name."""
    args, machine = search.args, results.machine()
    device = f"gpu-{args.precision}" if args.gpu else "cpu"
    record = {
        "date": results.today(),
        "machine": machine,
        "seed": args.seed,
        "precision": args.precision,
        "seconds": round(seconds),
        "nets": search.nets,
        "compared": search.compared,
        "types": search.types,
        "explained": search.explained,
        "failed": search.failed,
    }
    intro = (
        f"# {search.nets:,} random nets beside a reference in float64\n\n"
        f"`make differential`, {record['date']}: {machine['cpu']}, {machine['cores']} cores, "
        f"{device}. Each net is computed in every configuration and compared with PyTorch's "
        f"autograd; what is allowed is {FACTOR[args.precision]:.0f} times the spread "
        "that rounding noise gives each value. Rounding: explained by the spread of more draws; "
        "a step nearby: a comparison of almost equal numbers went the other way; overflow: the "
        "exact value is no float32.\n\n"
    )
    name = f"differential-{device}-{record['date']}"
    return str(results.write(name, record, intro + text(search, seconds)))
