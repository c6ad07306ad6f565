"""The way from dataclasses of options to argparse, and back with the values."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from ..options.flags import Flag, Group, OneOf, name_of
from ..options.kinds import Kind

_FIRST = 10
_LONG = 12
"""Flags from which on help begins with those that are needed often."""


def declare(parser: argparse.ArgumentParser, options: type) -> None:
    """Give a parser the flags of a dataclass and of the groups in it. A long help begins with those
    that are needed often: of groups those that are marked, and the dataclass's own first ones."""
    found = list(_flags(options))
    left, first = _FIRST - sum(flag.often is True for _, flag, _ in found), list[Field[Any]]()
    for field, flag, section in found:
        own = flag.often is None and flag.name != "-" and section is None
        if flag.often or (own and left > 0):
            first.append(field)
            left -= own
    long = len(found) > _LONG
    sections: dict[Group, argparse._ArgumentGroup] = {}
    choices: dict[OneOf, argparse._MutuallyExclusiveGroup] = {}
    for field, flag, section in found:
        place: argparse._ActionsContainer = parser
        if section is None and long and flag.name != "-":
            section = Group(options, "more options")
        if section and not (long and field in first):
            if section not in sections:
                sections[section] = parser.add_argument_group(*section[1:])
            place = sections[section]
        if (one_of := flag.one_of) is not None:
            if one_of not in choices:
                choices[one_of] = place.add_mutually_exclusive_group(required=one_of.required)
            place = choices[one_of]
        if flag.positional:
            place = place.add_mutually_exclusive_group(required=True)
            place.add_argument(field.name, help=flag.help, **_settings(flag), nargs="?")
            flag = flag._replace(help="the same")
        place.add_argument(name_of(field), help=_help(flag), **_settings(flag))
    if long:  # what all commands have
        actions = parser._optionals._group_actions
        actions.sort(key=lambda action: action.dest in ("help", "quiet"))
    for field in fields(options):
        if (several := field.metadata.get("commands")) is not None:
            parsers = parser.add_subparsers(
                dest="subcommand", metavar="WHAT", required=several.required
            )
            for name, each in several.all().items():
                text = each.__doc__.rstrip(".")
                declare(parsers.add_parser(name, help=text[0].lower() + text[1:]), each)


def _flags(options: type) -> Iterator[tuple[Field[Any], Flag, Group | None]]:
    """The flags of a dataclass with their headings, its own first. Arguments are in the order in
    which it states them, also those that take the place of a flag of a base."""
    own = [field for field in fields(options) if "flag" in field.metadata]
    order = {name: at for at, name in enumerate(options.__annotations__)}
    flags = {field: field.metadata["flag"] for field in own}
    arguments = [field for field, flag in flags.items() if flag.positional or flag.name == "-"]
    arguments.sort(key=lambda field: order.get(field.name, -1))
    for field in [*arguments, *(field for field in own if field not in arguments)]:
        yield field, flags[field], None
    for field in fields(options):
        if group := field.metadata.get("group"):
            for inner, flag, _ in _flags(group.options):
                yield inner, flag, group if group.title else None


def _settings(flag: Flag) -> dict[str, Any]:
    """The arguments of argparse's `add_argument`."""
    more = dict(flag.more)
    if flag.kind is None:
        return {"action": "store_true"} | more
    if isinstance(flag.kind, Kind):
        more["metavar"], more["type"], _ = flag.kind
    elif isinstance(flag.kind, str):
        more["metavar"] = flag.kind
    else:
        more["choices"] = list(flag.kind)
    if flag.positional:
        more["default"] = argparse.SUPPRESS
    elif flag.default is not MISSING:
        more["default"] = flag.default
    elif flag.name != "-":
        more["required"] = True
    return more


def _help(flag: Flag) -> str:
    """The help, which states the default unless its text mentions one."""
    default = None if flag.default is MISSING else flag.default
    text = f"{default:g}" if isinstance(default, float) else str(default)
    help = flag.help
    if default and flag.kind is not None and "default" not in help:
        help += " (default: %(default)s)"
    return help.replace("%(default)s", text)


def build(options: type, values: Mapping[str, Any]) -> Any:
    """A dataclass of options with the values that argparse has read."""
    made: dict[str, Any] = {}
    for field in fields(options):
        if (flag := field.metadata.get("flag")) is not None:
            value = values[name_of(field).lstrip("-")]
            made[field.name] = flag.kind[value] if isinstance(flag.kind, dict) else value
        elif (group := field.metadata.get("group")) is not None:
            made[field.name] = build(group.options, values)
        elif (several := field.metadata.get("commands")) is not None and values["subcommand"]:
            made[field.name] = build(several.all()[values["subcommand"]], values)
    return options(**made)
