"""The parser of the command line: strict, with short messages."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable
from typing import Any, NoReturn

from .. import messages
from ..errors import UserError, listed, nearest
from . import gflags


class Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line, without listing all options."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings | {"allow_abbrev": False})
        self.add_argument(
            "--quiet",
            action="store_true",
            default=argparse.SUPPRESS,  # the program has this option, too
            help="log warnings and errors only, and show no progress",
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Like argparse's, but each subcommand rejects unknown arguments itself, before it reports
        missing ones."""
        if self._subparsers is None:
            args = gflags.read(args, self._option_string_actions, self.error)
        words = args[: args.index("--")] if "--" in args else args
        if self._subparsers is not None:  # what follows the command is the command's own
            words = itertools.takewhile(lambda word: word.startswith("-"), words)
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        self._refuse([word for word in options if word not in self._option_string_actions])
        parsed, rest = super().parse_known_args(args, namespace)
        self._refuse(rest)
        return parsed, rest

    def _refuse(self, unknown: list[str]) -> None:
        if unknown:
            hint = _hint(unknown[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {listed(unknown)}{hint}")

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        """Like argparse's, but with the message of a UserError."""
        try:
            return super()._get_value(action, text)
        except UserError as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def _get_values(self, action: argparse.Action, given: list[str]) -> Any:
        """Like argparse's, but a second "--" is not a value (Python 3.11: an empty list)."""
        values = super()._get_values(action, given)
        if action.nargs is None and values == []:
            raise argparse.ArgumentError(action, "expected one argument")
        return values

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Like argparse's, but a wrong command gets a hint instead of a long list."""
        if isinstance(action, argparse._SubParsersAction) and value not in (action.choices or ()):
            hint = _hint(value, action.choices or ())
            self.error(f"no command {value!r}{hint}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Exit with 2, as for any usage error."""
        self.exit(2, f"{self.prog}: {messages.tidy(message)}; see {self.prog} --help\n")


def _hint(word: str, known: Iterable[str]) -> str:
    near = nearest(word, known)
    return f" (did you mean {near}?)" if near else ""
