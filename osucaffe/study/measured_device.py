"""Measures this device for `osucaffe time --cluster`, and writes what it found into a cluster file.

It writes line by line: what else people have written there, and their comments, stay.
"""

from __future__ import annotations

import json
import logging
import platform
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from ..backends.cores import computing_threads
from ..cli import loading
from ..cli.score.device_rates import measure_rates
from ..cli.score.options import Time
from ..cli.score.time import measure_whole
from ..errors import UserError
from ..files import read_bytes, write_bytes
from ..parallel.batch import readers
from ..proto import caffe_pb2, read_net
from .cluster import read_cluster
from .times import find_half_batch

IMAGES = "images_per_second"


_PART = 8
"""The parts of a batch of which one is timed, too, to tell what is fixed."""
_TURNS = 3


def measure_device(options: Time, file: str) -> None:
    """Measure this device, with whole batches and an eighth of them in turn, and write what was
    found into a cluster file."""
    param = read_net(options.model)
    batches = {message.batch_size for _, message in readers(param)}
    if len(batches) != 1 or options.phase != "TRAIN" or (batch := batches.pop()) < 2:
        raise UserError(
            f"--cluster: {options.model} must read batches of one size, of two images or more, in "
            "its TRAIN phase"
        )
    small = max(1, batch // _PART)
    little = caffe_pb2.NetParameter()
    little.CopyFrom(param)
    for _, message in readers(little):
        message.batch_size = small
    rates = measure_rates(loading.make_backend(options.device))
    nets = [
        loading.load_net(options, reads=False, param=each, phase="TRAIN", gradients=True)
        for each in (param, little)
    ]
    turns = [[measure_whole(net, options.iterations) for net in nets] for _ in range(_TURNS)]
    whole, part = map(min, zip(*turns, strict=True))
    fields = {
        "tflops": rates.flops / 1e12,
        "memory_gb_s": rates.nbytes / 1e9,
        "half_batch": find_half_batch(batch, whole, small, part),
    }
    if not fields["half_batch"]:
        logging.getLogger("osucaffe").warning(
            "%d images take no less time per image than %d, so no fixed cost shows: if other "
            "programs run here, measure again",
            *(batch, small),
        )
    gpu, threads = options.device.gpu, options.device.threads
    device = f"--gpu {gpu}" if gpu else f"--threads {threads or computing_threads()}"
    how = f"osucaffe time on {platform.node()}, {device}"
    write_device(file, fields, nets[0].name, 1e3 * batch / whole, batch, how)
    print(
        f"{batch} images take {whole:.3f} ms, {small} take {part:.3f} ms: half_batch = "
        f"{fields['half_batch']:g}\nwrote {file}: device.{', '.join(fields)}, and "
        f"{1e3 * batch / whole:.4g} images/s of {nets[0].name}"
    )


def write_device(
    path: str | Path, fields: Mapping[str, float], net: str, rate: float, batch: int, how: str
) -> None:
    """Put fields of [device], and a net's images per second by batches of this size, into a cluster
    file. how: the source that is named for each. UserError where it is none."""
    read_cluster(path)
    lines = read_bytes(path).decode().splitlines()
    for name, value in fields.items():
        _set(lines, "device", name, f"{value:.4g}")
    _set(lines, f"device.{IMAGES}", json.dumps(net), f"[{rate:.4g}, {batch}]")
    for name in (*fields, IMAGES):
        of = f"{how}: {net}" if name == IMAGES else how
        _set(lines, "sources", json.dumps(f"device.{name}"), json.dumps(of))
    text = "\n".join(lines) + "\n"
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(
            f"{path}: nothing was written ({error}): give [device], its {IMAGES} and [sources] "
            "tables of their own, with a line for each field"
        ) from None
    write_bytes(path, text.encode())


def _set(lines: list[str], table: str, key: str, value: str) -> None:
    """Replace the line of a key, or add one at the end of its table, which is made if it is not
    there."""
    heads = [number for number, line in enumerate(lines) if line.strip().startswith("[")]
    begin = next((n for n in heads if lines[n].partition("#")[0].strip() == f"[{table}]"), None)
    if begin is None:
        lines += ["", f"[{table}]"]
        begin = len(lines) - 1
    end = next((n for n in heads if n > begin), len(lines))
    while not lines[end - 1].strip():
        end -= 1
    for number in range(begin + 1, end):
        if re.match(rf"\s*{re.escape(key)}\s*=", lines[number]):
            lines[number] = f"{key} = {value}"
            return
    lines.insert(end, f"{key} = {value}")
