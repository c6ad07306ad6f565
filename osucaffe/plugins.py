"""Finds by name what is not in the core, or is imported late: layer types, channels and commands,
osucaffe's and other packages'.

Each is an entry point, as Python packages declare them: a line `name = package.module:object` of a
group. osucaffe's own are in a file entry_points.txt of each folder that has any, so that they are
found without an installation, and a folder that is taken away takes its own with it; those of other
packages are in their metadata. A module is imported when somebody asks for what it has.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

from .errors import UserError

AGGREGATIONS = "osucaffe.aggregations"
"""What --aggregation names: classes derived from `parallel/exchange.py: Exchange`."""
ALGORITHMS = "osucaffe.algorithms"
"""What --algorithm names: functions that make an all-reduce's schedule of a
`comm/algorithms.py: Problem`, or such functions by operation."""
ACTIONS = "osucaffe.actions"
"""What commands of the core leave to other parts."""
CHANNELS = "osucaffe.channels"
"""Channels between pairs of ranks: functions that `comm/channels/create.py` calls."""
COMMANDS = "osucaffe.commands"
"""Commands: the dataclasses of their options; a comment after ours says what they do."""
COMPRESSION = "osucaffe.compression"
"""What --compression names: classes derived from `parallel/hook.py: GradientHook`."""
DESIGNS = "osucaffe.designs"
"""What other options of training name, and the core does without."""
LAYERS = "osucaffe.layers"
"""Layer types: modules whose classes register themselves by `layers.base.register`."""
RECORDS = "osucaffe.records"
"""Forms of a database's records: functions of one that give its Datum and labels, or None."""


@functools.cache
def own() -> dict[str, dict[str, str]]:
    """What osucaffe itself has: of each group, where each name is found."""
    groups: dict[str, dict[str, str]] = {}
    group = ""
    for path in sorted(Path(__file__).parent.glob("*/entry_points.txt")):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" = ")
            if value:
                groups[group][name] = value
            elif line:
                group = line.strip("[]")
                groups.setdefault(group, {})
    return groups


@functools.cache
def others(group: str) -> dict[str, str]:
    """What other packages have in a group. Looks at the metadata of all packages: 10 ms."""
    from importlib.metadata import entry_points

    return {each.name: each.value for each in entry_points(group=group)}


def names(group: str) -> list[str]:
    """All names of a group; nothing is imported."""
    return sorted({*own().get(group, ()), *others(group)})


def find(group: str, name: str) -> Any:
    """What has this name, its module imported; None where nothing has. Ours come before those of
    other packages, and names may be places themselves: "module:object", of any module that can be
    imported. UserError where one of others cannot."""
    if value := own().get(group, {}).get(name):
        return _load(value)
    value = others(group).get(name, "")
    if not value and is_place(name):
        value = name
    if not value:
        return None
    try:
        return _load(value)
    except Exception as error:
        if value == name:
            raise UserError(
                f"{name} cannot be imported: {error}: install its package, or put its folder into "
                "PYTHONPATH"
            ) from error
        raise UserError(f"{name} = {value}, an entry point of {group}: {error}") from error


def is_place(name: str) -> bool:
    """Whether it has the form "module:object"."""
    module, _, found = name.partition(":")
    return found.isidentifier() and all(part.isidentifier() for part in module.split("."))


def need(group: str, name: str) -> Any:
    """What has this name. UserError if nothing has."""
    if (found := find(group, name)) is None:
        raise UserError(f"{name} of {group} is missing: install all of osucaffe")
    return found


def provided(table: dict[str, Any], kind: Any, module: str) -> Any:
    """What a table has for a primitive, by its name. Where it has nothing, the package of the
    primitive may fill it by a module of this name beside the primitive's own. None: it does not."""
    beside = f"{kind.__module__.rpartition('.')[0]}.{module}"
    if kind.name not in table and importlib.util.find_spec(beside):
        importlib.import_module(beside)
    return table.get(kind.name)


def runner(options: Any, name: str) -> Any:
    """The function that runs a command: `run` of the module of its name, in the folder that the
    dataclass of its options is in."""
    folder = type(options).__module__.rpartition(".")[0]
    return importlib.import_module(f"{folder}.{name}").run


def _load(value: str) -> Any:
    """A module, or an object in it: "package.module:object"."""
    module, _, name = value.partition("  #")[0].partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, name) if name else loaded
