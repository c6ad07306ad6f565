"""Owns how a command line is read: as gflags does, with which Caffe's tools read theirs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NoReturn

from .arguments.options import files, names, stages

Actions = Mapping[str, argparse.Action]

TOOLS = ("train", "test", "time", "device_query")
"""The actions of the program `caffe`, which all take the flags of all."""
_CAFFE = (
    *("gpu", "solver", "model", "phase", "level", "stage", "snapshot", "weights", "iterations"),
    *("sigint_effect", "sighup_effect", "log_dir"),
)
_TRUE, _FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
_OPTION = re.compile(r"--?([a-z][\w-]+)(.*)", re.DOTALL)


def normalize(arguments: Sequence[str]) -> list[str]:
    """Give every option two dashes and underscores: "-log-dir=D" becomes "--log_dir=D"."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)

    def option(word: str) -> str:
        match = _OPTION.fullmatch(word)
        return f"--{match[1].replace('-', '_')}{match[2]}" if match else word

    return [*map(option, words[:end]), *words[end:]]


def action_first(
    words: Sequence[str], commands: Collection[str], options_of: Callable[[str], Actions]
) -> list[str]:
    """Put the command before the options that precede it: `-gpu 2 train` means `train -gpu 2`.

    options_of: those of a command.
    """
    for place, command in enumerate(words):
        if not place or command not in commands or not words[0].startswith("--"):
            continue
        options, left = options_of(command), iter(words[:place])
        for word in left:
            name, equals, _ = word.partition("=")
            action = options.get(name) or options.get(f"--{name.removeprefix('--no')}")
            if action is None or (action.nargs is None and not equals and not next(left, "")):
                break
        else:
            return [command, *words[:place], *words[place + 1 :]]
    return list(words)


def accept_unused(parser: argparse.ArgumentParser, declared: Actions) -> None:
    """Take the flags of `caffe` that this action does not use: they change nothing."""
    for name in _CAFFE:
        if f"--{name}" not in declared:
            parser.add_argument(
                f"--{name}", dest="unused", default=argparse.SUPPRESS, help=argparse.SUPPRESS
            )


def read(words: Sequence[str], options: Actions, fail: Callable[[str], NoReturn]) -> list[str]:
    """These words as argparse reads them: a boolean is there or not, an option that is given
    again replaces what was given before, and an empty text is the default.

    options: those that there are. fail: is called for a boolean that is none.
    """
    result: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            return [*result, word, *left]
        name, equals, value = word.partition("=")
        action = options.get(name)
        if action is None and name.startswith("--no") and not equals:
            name, equals, value = f"--{name.removeprefix('--no')}", "=", "false"
            action = options.get(name)
            action = action if _is_boolean(action) else None
        if action is None:
            result.append(word)
        elif _is_boolean(action):
            if equals and value.lower() not in (*_TRUE, *_FALSE):
                fail(f"argument {name}: must be true or false, not {value!r}")
            result = [other for other in result if other != name]
            if not equals or value.lower() in _TRUE:
                result.append(name)
        elif name.startswith("--") and action.nargs is None and _replaces(action):
            given = value if equals else next(left, None)
            if given is None or (not equals and given.startswith("--")):
                result += [name, *([] if given is None else [given])]  # its value is missing
                continue
            result = [other for other in result if not other.startswith(f"{name}=")]
            if given or not _is_text(action):
                result.append(f"{name}={given}")
        else:
            result.append(word)
    return result


def _is_boolean(action: argparse.Action | None) -> bool:
    return isinstance(action, argparse._StoreTrueAction)


def _replaces(action: argparse.Action) -> bool:
    return isinstance(action, argparse._StoreAction)


def _is_text(action: argparse.Action) -> bool:
    return bool(action.choices) or action.type in (None, str, files, names, stages)
