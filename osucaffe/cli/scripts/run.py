"""`osucaffe run`: a script, or a module, whose `import caffe` is osucaffe, and which otherwise
runs as Python itself runs it."""

from __future__ import annotations

import io
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType

from ... import as_caffe, messages
from ...errors import UserError
from .options import Run

_PACKAGE = os.path.dirname(as_caffe.__path__[0])


def run(options: Run) -> Callable[[], None]:
    """What runs the script, once the command is out of its way. UserError if there is none."""
    if options.script is not None and not os.path.isfile(options.script):
        raise UserError(f"{options.script}: no such file")
    return lambda: _run(options.script, options.module, options.arguments)


def _run(script: str | None, module: str | None, arguments: Sequence[str]) -> None:
    """Be `python script ARGUMENTS`, or `python -m module ARGUMENTS`."""
    as_caffe.lead()
    paths = [as_caffe.FOLDER, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # of the Pythons that the script starts
    if not messages.debugging():
        sys.excepthook = _show
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = [script or "-m", *arguments]
    first = os.path.dirname(os.path.realpath(script)) if script else os.getcwd()
    if not sys.flags.safe_path:
        sys.path[0] = first
    if module is not None:
        runpy._run_module_as_main(module)  # type: ignore[attr-defined]
        return
    assert script is not None
    main.__file__ = path = os.path.abspath(script)
    main.__loader__ = SourceFileLoader("__main__", path)
    main.__dict__["__cached__"] = None
    with io.open_code(path) as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that ends the script: the script's own with its traceback, a UserError in one
    line that begins with the script's."""
    seen: set[int] = set()
    todo = [error]
    while todo:
        each = todo.pop()
        if id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = _without_ours(each.__traceback__)
            todo += filter(None, (each.__cause__, each.__context__))
    if not isinstance(error, UserError):
        sys.__excepthook__(kind, error, error.__traceback__)
        return
    *_, last = None, *_entries(error.__traceback__)
    where = f"{last.tb_frame.f_code.co_filename}, line {last.tb_lineno}: " if last else ""
    print(f"osucaffe: {where}{messages.explain(error)}", file=sys.stderr, flush=True)


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without what started the script, and without osucaffe's own frames."""
    entries = list(_entries(trace))
    files = [entry.tb_frame.f_code.co_filename for entry in entries]
    start = files.index(__file__) + 1 if __file__ in files else 0
    shown = None
    for entry, file in reversed([*zip(entries, files, strict=True)][start:]):
        if not file.startswith((_PACKAGE + os.sep, "<frozen runpy>")):
            shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown
