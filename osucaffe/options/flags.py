"""How options are declared: as fields of dataclasses, of which the command line makes flags.

A group of options is a dataclass next to the code that it is for (ParallelConfig, DataConfig ...),
and so are the options of a command, whose fields may be groups. A field is all that there is about
a flag: its name, type, default, help and check, and with what it cannot be combined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .. import plugins
from .kinds import Kind

REQUIRED = dataclasses.MISSING


class OneOf(NamedTuple):
    """Flags of which at most one may be given, or must be."""

    name: str
    required: bool = False


class Flag(NamedTuple):
    """What the command line knows of a field.

    kind: None: it takes no value; text: the value's name in help pages; or several choices, perhaps
    with the values that they stand for. default: on the command line. name: unless it is the
    field's, with two dashes; "-" for an argument. often: whether a long help begins with it (None:
    if it is of the command's own first ones). positional: it may be given without its name, too.
    ranks: whether all ranks must have the "same", or the same content of a "file", or "name" of a
    file; or each may have its "own". excluded_by: flags that it cannot be combined with.
    environment: a variable that hands it on to all processes. more: argparse's arguments.
    """

    help: str
    kind: str | Kind | Sequence[Any] | dict[str, Any] | None
    default: Any
    name: str = ""
    often: bool | None = None
    positional: bool = False
    one_of: OneOf | None = None
    ranks: str = "same"
    excluded_by: Sequence[str] = ()
    environment: str = ""
    more: dict[str, Any] = {}  # noqa: RUF012 (never changed)

    def show(self, value: Any) -> str:
        """A value for a message."""
        if isinstance(self.kind, dict):
            return next(word for word, meant in self.kind.items() if meant == value)
        return self.kind.show(value) if isinstance(self.kind, Kind) else str(value)


class Group(NamedTuple):
    """A field that is a group of options, with its heading in help pages."""

    options: type
    title: str
    description: str | None = None


class Commands(NamedTuple):
    """A field that is the chosen subcommand's options. Their docstrings are their help. Others are
    found by their names: "data folder" is a subcommand of `data`."""

    options: dict[str, type]
    required: bool
    prefix: str

    def all(self) -> dict[str, type]:
        """All of them, imported."""
        found = (name for name in plugins.own()[plugins.COMMANDS] if name.startswith(self.prefix))
        others = {
            name.removeprefix(self.prefix): plugins.find(plugins.COMMANDS, name) for name in found
        }
        return self.options | (others if self.prefix else {})


_SETTINGS = frozenset(Flag._fields) - {"help", "kind", "default", "more"}


def flag(
    help: str,
    kind: str | Kind | Sequence[Any] | dict[str, Any] | None = None,
    default: Any = None,
    *,
    command: Any = None,
    **more: Any,
) -> Any:
    """A field that is a flag. command: its default on the command line, where that is another than
    the field's. more: settings of Flag, and argparse's arguments."""
    settings = {name: more.pop(name) for name in _SETTINGS & more.keys()}
    default = False if kind is None else default
    on_command_line = default if command is None else command
    return _field(Flag(help, kind, on_command_line, more=more, **settings), default)


def argument(help: str, kind: str | Kind | Sequence[Any], **more: Any) -> Any:
    """A field that is an argument without a name. more: as of `flag`."""
    return flag(help, kind, None if more.get("nargs") == "?" else REQUIRED, name="-", **more)


def like(field: Any, help: str = "", default: Any = None, **changes: Any) -> Any:
    """A field for the same flag as another, for which something in the help is different."""
    same: Flag = field.metadata["flag"]
    new = same._replace(help=help or same.help, **changes)
    if default is None:
        made = field.default_factory is not REQUIRED
        return _field(new, field.default_factory() if made else field.default)
    return _field(new._replace(default=default), default)


def field_of(options: type, name: str) -> Any:
    """A field of a group, for `like`."""
    return options.__dataclass_fields__[name]  # type: ignore[attr-defined]


def _field(flag: Flag, default: Any) -> Any:
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata={"flag": flag})
    return dataclasses.field(default=default, metadata={"flag": flag})


def group(options: type, title: str | None = None, description: str | None = None) -> Any:
    """A field that is a group of options. title: of its section in help pages (None: the first line
    of its docstring; "": it has none)."""
    if title is None:
        first = (options.__doc__ or "").partition("\n")[0].rstrip(".")
        title = first[0].lower() + first[1:]
    metadata = {"group": Group(options, title, description)}
    return dataclasses.field(default_factory=options, metadata=metadata)


def commands(options: dict[str, type], *, required: bool = True, prefix: str = "") -> Any:
    """A field that is the chosen subcommand's options (None: none is). prefix: of the names of
    further ones."""
    metadata = {"commands": Commands(options, required, prefix)}
    return dataclasses.field(default=None, metadata=metadata)


def name_of(field: dataclasses.Field[Any]) -> str:
    """What a field is on the command line: "--comm", or the name of an argument."""
    name: str = field.metadata["flag"].name
    return field.name if name == "-" else name or f"--{field.name}"


def flags_of(options: Any) -> Iterator[tuple[str, Flag, Any]]:
    """All flags of a command's options, and of the groups in them, with their values."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if "flag" in field.metadata:
            yield name_of(field), field.metadata["flag"], value
        elif {"group", "commands"} & field.metadata.keys() and value is not None:
            yield from flags_of(value)


def excluded(options: Any, flag: str) -> str | None:
    """The first flag that is given although it cannot be combined with this one."""
    found = (name for name, each, value in flags_of(options) if flag in each.excluded_by and value)
    return next(found, None)
