"""What is public: names and arguments as public.txt lists them, and the warning before one goes.

`python -m tests.api.test_stability` writes the file anew. A line of it that changes or goes, other
than by what is added, needs a release that warns of it: `osucaffe.errors.deprecated`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import osucaffe as oc
from osucaffe.errors import deprecated

_MADE = "Net", "Run", "Solver"
"""The classes of which programs make objects."""
FILE = Path(__file__).with_name("public.txt")


def _arguments(function: object) -> str:
    """Names and defaults: annotations may become more precise."""
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    return str(inspect.Signature([each for each in bare if each.name != "self"]))


def _members(kind: type) -> dict[str, object]:
    """What the classes of ours that it inherits from define, or set in their methods."""
    found: dict[str, object] = {}
    for each in kind.__mro__:
        if each.__module__.startswith("osucaffe"):
            found |= vars(each)
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(each)))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    found.setdefault(node.attr, None)
    return {name: found[name] for name in sorted(found) if not name.startswith("_")}


def _public() -> Iterator[str]:
    yield f"osucaffe {oc.__version__}"
    for name in sorted({*oc.__all__} - {"__version__"}):
        value = getattr(oc, name)
        if inspect.isfunction(value):
            yield f"{name}{_arguments(value)}"
        elif inspect.isclass(value):
            yield f"{name}{_arguments(value.__init__) if name in _MADE else ''}"
            for each, member in _members(value).items():
                yield f"{name}.{each}{_arguments(member) if inspect.isfunction(member) else ''}"
        else:
            yield from (f"{name}.{each}" for each in ("Layer", "Reshaped", "register"))


def test_public_names_and_arguments_are_those_listed() -> None:
    assert "\n".join(_public()).splitlines() == FILE.read_text().splitlines()


def test_a_release_warns_before_a_name_goes() -> None:
    def old() -> None:
        deprecated("oc.old", "call oc.new", since="0.1.0")

    words = "oc.old is deprecated since osucaffe 0.1.0, .*: call oc.new"
    with pytest.warns(DeprecationWarning, match=words) as warned:
        old()
    assert warned[0].filename == __file__


if __name__ == "__main__":
    FILE.write_text("\n".join(_public()) + "\n")
