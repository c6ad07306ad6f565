"""EDSR trained by osucaffe and by PyTorch on the same patches, and how good the images are.

`python -m benchmarks.training.super_resolution --data data/photographs --gpu 0 --seconds 60` trains
with osucaffe for about so long, then the same net from the same first values, with the same
patches, in PyTorch for as many steps, and prints PSNR and SSIM of the held-out photographs, beside
bicubic enlargement. What models/edsr/photographs.py made is the data. Both make Adam's steps for
the mean absolute error, with a rate that falls to 0 linearly; both compute convolutions in the
precision, on a GPU an iteration is a captured graph. Each side is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from .. import results

MODEL = "edsr_baseline"
SIDES = ("osucaffe", "PyTorch")


def main() -> None:
    """Run both sides and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--data", default="data/photographs", help="of models/edsr/photographs.py")
    add("--out", default="build/super_resolution", help="weights and figures go there")
    add("--gpu", help="the GPU (default: the CPU)")
    add("--precision", choices=("fp32", "tf32", "bf16"), default="tf32", help="of a GPU")
    add("--seconds", type=float, default=60, help="of osucaffe's training, about")
    add("--iterations", type=int, help="in place of --seconds")
    add("--batch", type=int, default=16)
    add("--rate", type=float, default=3e-4, help="the learning rate at the beginning")
    add("--sides", default=",".join(SIDES))
    args = parser.parse_args()
    job = vars(args) | {"photographs": str(Path(args.data).resolve())}
    Path(args.out).mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for side in args.sides.split(","):
        command = [sys.executable, "-m", f"{__package__}.super_resolution_sides", side]
        done = subprocess.run([*command, json.dumps(job)], stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout.decode().splitlines()[-1])
        job["iterations"] = found["iterations"]  # the other side makes as many
        rows = rows or [{"name": "bicubic", "quality": found["bicubic"]}]
        rows.append({"name": side} | found)
        print_table(rows[-1:] if len(rows) > 2 else rows)
        figures = json.dumps(job | {"rows": rows}, indent=1) + "\n"
        (Path(args.out) / "quality.json").write_text(figures)  # if the other side fails
    write_results(job, rows)


def write_results(job: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """The record and its table, as those of benchmarks/results."""
    device = job.get("device") or _device(job)
    what = "fp32" if job["gpu"] is None else job["precision"]
    scores = [[row["name"], *means(row), *_spent(row)] for row in rows]
    photographs = [
        [name, *(f"{row['quality'][name][0]:.3f}" for row in rows)] for name in rows[0]["quality"]
    ]
    columns = ["", "PSNR dB", "SSIM", "steps", "seconds", "version"]
    text = f"""# {MODEL}: what it makes of held-out photographs

Written by `python -m benchmarks.training.super_resolution` on {results.today()}.

- {device}; {what}, batches of {job["batch"]} patches, Adam, {job["rate"]:g} falling linearly to 0
- the same patches, first values and steps on both sides; photographs shrunk by MATLAB's bicubic
- means over {len(photographs)} photographs; luma, without a border of 2 pixels
{job.get("note", "")}
{results.table(columns, scores)}

PSNR in dB of each:

{results.table(["photograph", *(row["name"] for row in rows)], photographs)}
"""
    place = "cpu" if job["gpu"] is None else results.slug(device)
    record = {"date": results.today(), "device": device, "job": job, "rows": rows}
    results.write(f"super-resolution-{place}-{results.today()}", record, text, Path(job["out"]))


def _device(job: dict[str, Any]) -> str:
    """What computed."""
    if job["gpu"] is None:
        return str(results.machine()["cpu"])
    from .gpu import versions

    return str(versions()["device"])


def means(row: dict[str, Any]) -> list[str]:
    """PSNR in dB and SSIM, means over the photographs."""
    values = list(row["quality"].values())
    psnr, ssim = (sum(each[at] for each in values) / len(values) for at in (0, 1))
    return [f"{psnr:.3f}", f"{ssim:.4f}"]


def _spent(row: dict[str, Any]) -> list[str]:
    if "iterations" not in row:
        return ["", "", ""]
    return [f"{row['iterations']:,}", f"{row['seconds']:.1f}", row["version"]]


def print_table(rows: list[dict[str, Any]]) -> None:
    """A line for each row: means over the photographs, steps, and how long they took."""
    for row in rows:
        psnr, ssim = means(row)
        line = f"{row['name']:10} {psnr:>6} dB  SSIM {ssim}"
        if "iterations" in row:
            steps, seconds, version = _spent(row)
            line += f"  {steps} steps in {seconds} s; {version}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
