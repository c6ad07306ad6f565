"""The command `osucaffe`: it finds the subcommand, runs it, and turns errors into messages.

A command is imported once its options are read: from here on they are a dataclass.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from .. import __version__, as_caffe, messages, plugins
from . import gflags
from .early_exit import report_early_exit
from .parser import Parser

COMMANDS = {name: at for name, at in plugins.own()[plugins.COMMANDS].items() if " " not in name}
"""Where the options of each command are. It runs as `run(options)` of the module of its name in the
same folder, which may return an exit code. Other packages may have commands, too."""
_TITLES = {
    "train": "training and scoring",
    "score": "training and scoring",
    "data": "data",
    "nets": "nets and model files",
    "reports": "logs and reports",
    "scripts": "scripts",
    "machine": "this machine",
    "study": "this machine",
    "ssd": "data",
}
"""Those of folders, in the list of commands. Other parts' folders are named as they are to be."""

_EPILOG = """\
Options are Caffe's; one dash or two, "-" or "_" are alike: -log_dir D, --log-dir=D.
They are read as gflags reads them: --gray=false or --nogray, --weights= for none, -gpu 0 train.
`osucaffe COMMAND --help` shows more. OSUCAFFE_DEBUG=1 shows tracebacks of errors."""


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
    try:
        name, options = parse(sys.argv[1:] if arguments is None else arguments)
        with report_early_exit():
            if hasattr(options, "starts"):  # before all that they import, too
                importlib.import_module(".launch.start", __name__).launch(*options.starts)
            code: int | Callable[[], None] = plugins.runner(options, name)(options) or 0
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


def _title(command: str) -> str:
    """The heading of a command in the list of all."""
    folder = COMMANDS[command].partition(":")[0].split(".")[-2]
    return _TITLES.get(folder, folder.replace("_", "-"))


class _Grouped(argparse.RawDescriptionHelpFormatter):
    """Lists the commands by groups."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        listed = {sub.dest: sub for sub in action._get_subactions()}
        parts = []
        for name in listed:
            title = _title(name)
            if f"\n{title}:\n" not in parts:
                parts.append(f"\n{title}:\n")
            parts.append(super()._format_action(listed[name]))
        return "".join(parts[1:])  # the first title is that of the argument


def parse(arguments: Sequence[str]) -> tuple[str, Any]:
    """The command of a command line, and its options. Exits with 2 if it is wrong."""
    given, rest = gflags.script_last(arguments)
    words = gflags.as_command(gflags.normalize(given), COMMANDS)
    words = gflags.action_first(words, COMMANDS, flags_by_name)
    name = words[0] if words else "--help"
    known = name in COMMANDS or (name.isidentifier() and name in plugins.names(plugins.COMMANDS))
    args = make_parser(name if known else None).parse_args(words or [name])
    from dataclasses import replace

    from .. import log
    from ..options.flags import flags_of
    from .declare import build

    log.command, log.quiet = list(arguments), getattr(args, "quiet", False)
    gflags.set_log(args)
    options = build(plugins.find(plugins.COMMANDS, name), vars(args))
    for _, flag, value in flags_of(options):
        if flag.environment and value:
            os.environ[flag.environment] = "1"
    return name, replace(options, arguments=rest) if rest else options


def flags_by_name(command: str) -> gflags.Actions:
    """The flags of a command, and what argparse knows of them."""
    [commands] = [
        action
        for action in make_parser(command)._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    options: gflags.Actions = commands.choices[command]._option_string_actions
    return options


def make_parser(only: str | None = None, *, whole: bool = False) -> argparse.ArgumentParser:
    """The parser of one command, or of the program, which knows the commands' options if it is to
    be whole: without, help comes at once."""
    parser = Parser(
        prog="osucaffe",
        description="Train, test and time the nets of Caffe.",
        epilog=_EPILOG,
        formatter_class=_Grouped,
    )
    parser.add_argument("--version", action="version", version=f"osucaffe {__version__}")
    commands = parser.add_subparsers(
        title=next(iter(_TITLES.values())), metavar="COMMAND", required=True
    )
    titles = [*dict.fromkeys(_TITLES.values())]
    ours = sorted(COMMANDS, key=lambda name: (*titles, _title(name)).index(_title(name)))
    for name in (only,) if only else ours:
        summary = COMMANDS.get(name, "").partition("  # ")[2]
        command = commands.add_parser(
            name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if only or whole:
            from .declare import declare

            options = plugins.find(plugins.COMMANDS, name)
            text = textwrap.dedent(options.__doc__ or "")
            command.description = f"{summary}\n{text}".strip()
            declare(command, options)
            gflags.accept_unused(name, command, command._option_string_actions)
    return parser
