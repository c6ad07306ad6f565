"""How a command line is read: as gflags does, with which Caffe's tools read theirs."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

Actions = Mapping[str, argparse.Action]

TOOLS = ("train", "test", "time", "device_query")
"""The actions of the program `caffe`, which all take the flags of all."""
_CAFFE = (
    *("gpu", "solver", "model", "phase", "level", "stage", "snapshot", "weights", "iterations"),
    *("sigint_effect", "sighup_effect", "log_dir"),
)
_GLOG_BOOLEANS = (
    *("logtostderr", "alsologtostderr", "colorlogtostderr", "log_prefix"),
    "stop_logging_if_full_disk",
)
_GLOG = (
    "minloglevel",
    "stderrthreshold",
    "v",
    "vmodule",
    "logbuflevel",
    "logbufsecs",
    "max_log_size",
)
ALIASES = {
    "upgrade_net_proto_text": ("upgrade", "net"),
    "upgrade_net_proto_binary": ("upgrade", "net"),
    "upgrade_solver_proto_text": ("upgrade", "solver"),
    "convert_mnist_data": ("convert_mnist",),
    "convert_cifar_data": ("convert_cifar",),
    "draw_net": ("draw",),
}
"""The commands that are Caffe's programs of these names. (Others have the same names.)"""
_TRUE, _FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
_TEXTS = ("str", "names", "stages", "files")
"""The parsers of values that may be empty."""
_OPTION = re.compile(r"--?([a-z][\w-]+)(.*)", re.DOTALL)


def normalize(arguments: Sequence[str]) -> list[str]:
    """Give every option two dashes and underscores: "-log-dir=D" becomes "--log_dir=D"."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)

    def option(word: str) -> str:
        match = _OPTION.fullmatch(word)
        return f"--{match[1].replace('-', '_')}{match[2]}" if match else word

    return [*map(option, words[:end]), *words[end:]]


def as_command(words: Sequence[str], commands: Collection[str]) -> list[str]:
    """Name the commands as they are called here: `parse_log.py LOG` means `parse_log LOG`."""
    for place, word in enumerate(words):
        name = word.removesuffix(".py").removesuffix(".bin")
        if name in ALIASES or name in commands:
            return [*words[:place], *ALIASES.get(name, (name,)), *words[place + 1 :]]
        if not word.startswith("-"):
            break
    return list(words)


def script_last(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Divide a command line after the script, or the module, that `run` runs: what follows is the
    script's own."""
    names = [place for place, word in enumerate(arguments) if not word.startswith("-")]
    end = names[1] + 1 if names[1:] and arguments[names[0]] == "run" else len(arguments)
    return arguments[:end], arguments[end:]


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


def accept_unused(command: str, parser: argparse.ArgumentParser, declared: Actions) -> None:
    """Take the flags that all programs with glog have, and those of `caffe` that this action does
    not use: but for GLOG_ as in `set_log`, they change nothing."""
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for name in (*_GLOG, *(_CAFFE if command in TOOLS else ())):
        if f"--{name}" not in declared:
            parser.add_argument(f"--{name}", dest=f"unused_{name}", **hidden)
    for name in (*_GLOG_BOOLEANS, *(("verbose",) if command == "parse_log" else ())):
        parser.add_argument(f"--{name}", dest=f"unused_{name}", action="store_true", **hidden)


def set_log(args: argparse.Namespace) -> None:
    """Let glog's flags and variables of the environment say where the log goes, and from which
    level on: GLOG_log_dir (--log_dir), GLOG_logtostderr (to no file) and GLOG_minloglevel."""
    options = vars(args)
    if "unused_minloglevel" in options:
        os.environ["GLOG_minloglevel"] = args.unused_minloglevel  # noqa: SIM112 (glog's name)
    if "log_dir" not in options:
        return
    only_to_stderr = os.environ.get("GLOG_logtostderr", "0").lower() in _TRUE  # noqa: SIM112
    if only_to_stderr or "unused_logtostderr" in options:
        args.log_dir = None
    else:
        args.log_dir = args.log_dir or os.environ.get("GLOG_log_dir")  # noqa: SIM112


def read(words: Sequence[str], options: Actions, fail: Callable[[str], NoReturn]) -> list[str]:
    """These words as argparse reads them: a boolean is there or not, an option that is given
    again replaces what was given before, an empty text is the default, and arguments between
    options follow these.

    options: those that there are. fail: is called for a boolean that is none.
    """
    result: list[str] = []
    left, ordered = iter(words), True
    for word in left:
        if word == "--":
            result += [word, *left]
            ordered = False
            break
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
        elif name.startswith("--") and action.nargs is None:
            given = value if equals else next(left, None)
            if given is None or (not equals and given.startswith("--")):
                result += [name, *([] if given is None else [given])]  # its value is missing
                ordered = False
                continue
            if isinstance(action, argparse._StoreAction):
                result = [other for other in result if not other.startswith(f"{name}=")]
            if given or not _is_text(action):
                result.append(f"{name}={given}")
        else:
            result.append(word)
            ordered = ordered and action.nargs == 0
    return sorted(result, key=lambda word: not word.startswith("--")) if ordered else result


def _is_boolean(action: argparse.Action | None) -> bool:
    return isinstance(action, argparse._StoreTrueAction)


def _is_text(action: argparse.Action) -> bool:
    return bool(action.choices) or getattr(action.type, "__name__", "str") in _TEXTS
