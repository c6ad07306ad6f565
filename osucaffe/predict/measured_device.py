"""Owns writing what was measured of a device into a cluster file, line by line: what else people
have written there, and their comments, stay."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from ..errors import UserError
from ..files import read_bytes, write_bytes
from .cluster import read_cluster

IMAGES = "images_per_second"


def write_device(
    path: str | Path, fields: Mapping[str, float], net: str, rate: float, batch: int, how: str
) -> None:
    """Put fields of [device], and a net's images a second by batches of this size, into a cluster
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
