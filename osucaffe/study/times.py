"""The computation time of each layer: measured, or estimated from a cluster's file.

Measured times are JSON: {"net": name, "batch": records, "layers": [{"name": ..., "forward_ms": ...,
"backward_ms": ...}, ...]}, a layer for each of the net's as it runs (`osucaffe predict --measure`
writes it). "sizes", if given, are the elements that parameters take in memory, by name: on CPUs
they are padded, in messages too; "half_batch": that many images more than the batch has take their
time (default 0). Other keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import read_bytes
from ..net import Net
from ..parsing import as_float, as_int, from_json
from .cluster import Cluster
from .sketch import Sketch, Work

Seconds = dict[tuple[str, int], float]
"""By direction ("forward", "backward") and a layer's number."""


@dataclass(frozen=True)
class Times:
    """The content of a file of times: rows (name, milliseconds forward, backward), the batch they
    are for (0: unknown), and the elements of parameters in memory by name. half_batch: see
    cluster.py."""

    path: str
    rows: list[tuple[str, float, float]]
    batch: int
    sizes: dict[str, int]
    half_batch: float = 0.0

    def of(self, sketch: Sketch) -> Seconds:
        """The times of a net's layers. They are taken to grow with the batch. UserError where the
        file is of another net."""
        rows, net = self.rows, [layer.label for layer in sketch.layers]
        if net != [name for name, _, _ in rows]:
            wrong = next((n for n in range(min(len(net), len(rows))) if net[n] != rows[n][0]), None)
            what = (
                f"{len(rows)} layers, the net has {len(net)}"
                if wrong is None
                else f'layer {wrong} is "{rows[wrong][0]}", the net has "{net[wrong]}" there'
            )
            raise UserError(
                f"{self.path}: these are times of another net: {what}; measure them again"
            )
        scale, half = 1.0, self.half_batch
        if self.batch and sketch.batch:
            scale = (sketch.batch + half) / (self.batch + half)
        seconds: Seconds = {}
        for layer, (_, forward, backward) in enumerate(rows):
            seconds["forward", layer] = scale * forward / 1e3
            seconds["backward", layer] = scale * backward / 1e3
        return seconds


def read_times(path: str | Path) -> Times:
    """Read a file of times. UserError where it is none."""
    return times_from(read_bytes(path), str(path))


def times_from(text: bytes, path: str) -> Times:
    """The times that JSON describes; path: what it is called."""
    try:
        content = from_json(text)
        rows = [
            (str(row["name"]), as_float(row["forward_ms"]), as_float(row["backward_ms"]))
            for row in content["layers"]
        ]
        sizes = {
            str(name): as_int(size, 0, 1 << 62) for name, size in content.get("sizes", {}).items()
        }
        half_batch = as_float(content.get("half_batch", 0))
        return Times(path, rows, content.get("batch") or 0, sizes, half_batch)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not times of layers ({error!r}): see --measure") from None


def find_half_batch(large: int, whole: float, small: int, part: float) -> float:
    """The images that take as long as what is fixed, from the times of two batches; 0 where the
    small one takes no less time, as then nothing tells how much is fixed."""
    if whole <= part:
        return 0.0
    return max(round((part * large - whole * small) / (whole - part), 2), 0.0)


def sizes_of(net: Net) -> dict[str, int]:
    """What a sketch takes as sizes: those of a net."""
    return {parameter.name: parameter.blob.data.size for parameter in net.parameters}


def estimate_times(sketch: Sketch, cluster: Cluster) -> Seconds:
    """Each layer's operations at the device's rate, or its bytes, whichever take longer; where the
    file says how many images per second this net makes, all of them together so long as that takes.

    UserError where the file says neither.
    """
    device = cluster.device
    if not (device.tflops and device.memory_gb_s):
        raise UserError(
            f"{cluster.name}: [device] has no tflops and memory_gb_s: give --times or --measure"
        )

    def floor(work: Work) -> float:
        return max(work.flops / device.tflops / 1e12, work.nbytes / device.memory_gb_s / 1e9)

    directions = {"forward": sketch.forward, "backward": sketch.backward}
    times = {
        (direction, layer): floor(work)
        for direction, works in directions.items()
        for layer, work in enumerate(works)
    }
    scale, batch = 1 / (device.efficiency or 1.0), sketch.batch
    if batch and (known := device.seconds(sketch.name, batch)):
        scale = known / sum(times.values())
    elif batch:
        scale *= (batch + device.half_batch) / batch
    return {key: scale * seconds for key, seconds in times.items()}


def describe_times(
    layers: Any, net: str, batch: int, sizes: Mapping[str, int], half_batch: float
) -> str:
    """The JSON of layers that were measured (each with name, type, forward and backward cost), and
    of the sizes of parameters."""
    rows = [
        {
            "name": layer.name,
            "type": layer.type,
            "forward_ms": layer.forward.milliseconds,
            "backward_ms": layer.backward.milliseconds,
        }
        for layer in layers
    ]
    made = {"net": net, "batch": batch, "half_batch": half_batch, "layers": rows}
    return json.dumps(made | {"sizes": dict(sizes)}, indent=1)
