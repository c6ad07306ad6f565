"""Owns the command `osucaffe`: it finds the subcommand, runs it, and turns errors into messages.

A command's options and help are in arguments/, by folders; it runs as `run(args)` of the module
of its name in its folder, which may return an exit code. It is imported once options are parsed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TextIO

from .. import __version__, as_caffe, messages
from ..errors import listed, nearest
from . import gflags
from .arguments.options import Options
from .early_exit import report_early_exit

FOLDERS = {
    "train": ("fit", "train"),
    "score": ("test", "time", "classify", "upscale", "extract_features"),
    "data": (
        *("data", "convert_imageset", "convert_annoset", "get_image_size", "compute_image_mean"),
        *("convert_mnist", "convert_cifar"),
    ),
    "nets": (
        *("new", "models", "summary", "draw", "layers", "net_spec"),
        *("upgrade", "export", "snapshot"),
    ),
    "reports": ("parse_log", "report", "profile"),
    "scripts": ("run",),
    "machine": ("device_query", "tune", "bench", "predict", "study", "version", "completion"),
}
"""The folders, and those of their modules that are commands."""
GROUPS = {
    "training and scoring": (*FOLDERS["train"], *FOLDERS["score"]),
    "data": FOLDERS["data"],
    "nets and model files": FOLDERS["nets"],
    "logs and reports": FOLDERS["reports"],
    "scripts": FOLDERS["scripts"],
    "this machine": FOLDERS["machine"],
}
COMMANDS = {name: folder for folder, names in FOLDERS.items() for name in names}
"""The commands, and their folders."""

_WITH_NETS = (
    *("train", "test", "time", "classify", "upscale", "extract_features", "net_spec", "export"),
    *("report", "study"),
)
"""The commands that instantiate the layers of a net."""

_EPILOG = """\
Options are Caffe's; one dash or two, "-" or "_" are alike: -log_dir D, --log-dir=D.
They are read as gflags reads them: --gray=false or --nogray, --weights= for none, -gpu 0 train.
`osucaffe COMMAND --help` tells more. OSUCAFFE_DEBUG=1 shows tracebacks of errors."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `osucaffe` with these arguments (default: the program's). Returns the exit code."""
    _open_closed_streams()
    try:
        with contextlib.redirect_stdout(_Printable(sys.stdout)):
            code = _run(arguments)
    except SystemExit as error:  # of a wrong command line
        _leave(error.code)
        raise
    if not isinstance(code, int):
        code()  # a script: what it writes, and how it ends, is its own
        return 0
    _leave(code)
    return code


class _Printable(io.TextIOBase):
    """Standard output for text of which some comes from files: it steers no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.fileno, self.isatty, self.flush = stream.fileno, stream.isatty, stream.flush  # type: ignore[method-assign]

    def write(self, text: str) -> int:
        return self._stream.write(messages.printable(text))


def _open_closed_streams() -> None:
    """Open standard streams that the shell closed: else the next files would get their numbers, and
    messages would be written into them."""
    for number, name, mode in (0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (as long as we)


def _leave(code: Any) -> None:
    """Let an error on one rank end all, even before it has joined them."""
    if code:
        from ..comm.job.job import leave

        leave(code if isinstance(code, int) else 1)


def _run(arguments: Sequence[str] | None) -> int | Callable[[], None]:
    """Returns the exit code, or what remains to be called."""
    as_caffe.offer()
    given, rest = gflags.script_last(sys.argv[1:] if arguments is None else arguments)
    words = gflags.normalize(given)
    try:
        words = gflags.as_command(words, COMMANDS)
        words = gflags.action_first(words, COMMANDS, _options_of)
        args = _parser(_command(words)).parse_args(words or ["--help"])
        args.script_arguments = rest
        if getattr(args, "no_python_layers", False):
            os.environ["OSUCAFFE_NO_PYTHON_LAYERS"] = "1"
        if getattr(args, "ignore_exif", False):
            os.environ["OSUCAFFE_IGNORE_EXIF"] = "1"
        if getattr(args, "quiet", False):
            from .. import log

            log.quiet = True
        gflags.set_log(args)
        with report_early_exit():
            if getattr(args, "starts_ranks", False):  # before all that they import, too
                importlib.import_module(".launch.start", __name__).launch(args)
            code: int | Callable[[], None]
            code = importlib.import_module(args.run, __name__).run(args) or 0
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        if messages.debugging() or messages.is_users(error):
            raise
        code = _code(error)
        if code != 141:
            print(f"osucaffe: {messages.explain(error)}", file=sys.stderr, flush=True)
        if code == 130 and arguments is None:
            # Python would wait for threads, for ever for one that was starting when Ctrl-C came.
            from ..files import remove_temporaries

            remove_temporaries()  # which such a thread may be writing
            _leave(code)
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(code)
    return code


def _code(error: BaseException) -> int:
    """The exit code for an error."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    nameless = isinstance(error, OSError) and error.filename is None
    if nameless and not messages.lacks_memory(error):
        # What it still holds cannot be written: `osucaffe ... | head`, a full disk.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141 if isinstance(error, BrokenPipeError) else 1


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line, without listing all options."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
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

    def _get_values(self, action: argparse.Action, given: list[str]) -> Any:
        """Like argparse's, but a second "--" is no value (in Python 3.11 it is an empty list)."""
        values = super()._get_values(action, given)
        if action.nargs is None and values == []:
            raise argparse.ArgumentError(action, "expected one argument")
        return values

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Like argparse's, but a wrong command gets a hint instead of a long list."""
        if isinstance(action, argparse._SubParsersAction) and value not in (action.choices or ()):
            hint = _hint(value, action.choices or ())
            self.error(f"there is no command {value!r}{hint}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Exit with 2, as for any usage error."""
        self.exit(2, f"{self.prog}: {messages.tidy(message)}; see {self.prog} --help\n")


class _Grouped(argparse.RawDescriptionHelpFormatter):
    """Lists the commands by groups."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        listed = {sub.dest: sub for sub in action._get_subactions()}
        parts = []
        for title, names in GROUPS.items():
            parts.append(f"\n{title}:\n")
            for name in names:
                parts.append(super()._format_action(listed[name]))
        return "".join(parts[1:])  # the first title is that of the argument


def _hint(word: str, known: Iterable[str]) -> str:
    near = nearest(word, known)
    return f" (did you mean {near}?)" if near else ""


def _command(words: Sequence[str]) -> str | None:
    """The command at the start of the arguments, if no option precedes it."""
    return words[0] if words and words[0] in COMMANDS else None


def _options_of(command: str) -> gflags.Actions:
    """The options of a command, by their names."""
    [commands] = [
        action
        for action in _parser(command)._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    options: gflags.Actions = commands.choices[command]._option_string_actions
    return options


def _parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands, or of one: with one alone the program starts in a third of
    the time."""
    parser = _Parser(
        prog="osucaffe",
        description="Train, test and time the nets of Caffe.",
        epilog=_EPILOG,
        formatter_class=_Grouped,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"osucaffe {__version__}")
    commands = parser.add_subparsers(title=next(iter(GROUPS)), metavar="COMMAND", required=True)
    for name in (only,) if only else COMMANDS:
        folder = COMMANDS[name]
        declare = getattr(importlib.import_module(f".arguments.{folder}", __name__), name)
        summary, _, description = declare.__doc__.partition("\n")
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary}\n{textwrap.dedent(description)}".rstrip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        declare(Options(command))
        if name in _WITH_NETS:
            command.add_argument(
                "--no_python_layers",
                action="store_true",
                help="refuse Python layers of modules that are not osucaffe's: what a net of "
                "unknown origin needs",
            )
        gflags.accept_unused(name, command, command._option_string_actions)
        command.set_defaults(run=f".{folder}.{name}")
    return parser
