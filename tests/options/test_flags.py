"""Flags are declared once, as fields; what is known of a flag is read from its field."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

import osucaffe
from osucaffe import plugins
from osucaffe.cli import COMMANDS, flags_by_name, main, parse
from osucaffe.options.flags import REQUIRED, excluded, field_of, flag, flags_of, group, like
from osucaffe.options.kinds import COUNT

PACKAGE = Path(osucaffe.__file__).parent


@dataclass(frozen=True, kw_only=True)
class Inner:
    """How it is done."""

    names: list[str] = flag("names", "NAMES", [])
    least: int = flag("the least (default: 3)", COUNT, 3, excluded_by=("--fast",))


@dataclass(frozen=True, kw_only=True)
class Outer:
    file: str = flag("a file", "FILE", REQUIRED)
    fast: bool = flag("do it fast")
    loud: bool = flag("how loud", {"low": False, "high": True}, False, command="low")
    names: list[str] = like(field_of(Inner, "names"), "other names")
    inner: Inner = group(Inner)


def test_fields_have_their_defaults_and_groups_their_flags() -> None:
    made = Outer(file="f")
    assert made == Outer(file="f", fast=False, loud=False, names=[], inner=Inner(names=[], least=3))
    assert made.names is not Outer(file="f").names
    assert [name for name, _, _ in flags_of(made)] == [
        "--file", "--fast", "--loud", "--names", "--names", "--least",
    ]  # fmt: skip
    assert excluded(made, "--fast") == "--least"
    assert excluded(Outer(file="f", inner=Inner(least=0)), "--fast") is None
    shown = {name: flag.show(value) for name, flag, value in flags_of(made)}
    assert (shown["--loud"], shown["--least"]) == ("low", "3")


def test_no_flag_is_declared_twice() -> None:
    """Those that several commands have are made by `like`."""
    found = Counter[tuple[str, str]]()
    for path in PACKAGE.rglob("*.py"):
        if "options.flags import" in (text := path.read_text()):
            for node in ast.walk(ast.parse(text)):
                match node:
                    case ast.AnnAssign(value=ast.Call(func=ast.Name("flag"), args=[help, *_])):
                        found[ast.unparse(node.target), ast.unparse(help)] += 1
    assert len(found) > 100
    assert [each for each, count in found.items() if count > 1] == []


def test_only_the_front_knows_argparse_and_the_command_line() -> None:
    front = {"__init__.py", "declare.py", "gflags.py", "parser.py", "completion.py"}
    for path in (PACKAGE / "cli").rglob("*.py"):
        text = path.read_text()
        assert "Namespace" not in text or path.name in front, path
        assert "sys.argv" not in text or path.parts[-2:] in (
            ("cli", "__init__.py"),
            ("scripts", "run.py"),
        ), path


FIRST = ["solver", "weights", "snapshot", "max_iter", "log_dir", "tensorboard"]
FIRST += ["gpu", "precision", "ranks", "best"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_long_help_begins_with_ten_flags(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {
        action.dest
        for name, action in flags_by_name(command).items()
        if action.help != "==SUPPRESS=="
    }
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = itertools.dropwhile(
        lambda line: line != "options:", capsys.readouterr().out.splitlines()
    )
    section = itertools.takewhile(bool, lines)
    first = [line.split()[0][2:] for line in section if line.startswith("  --")]
    assert len(first) <= (11 if len(shown) > 14 else 14), first  # with --quiet
    if command == "train":
        assert first == [*FIRST, "quiet"]


def test_a_command_of_another_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its entry point names the dataclass of its options; it runs as a module next to that."""
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "options.py").write_text(
        "from dataclasses import dataclass\nfrom osucaffe.options.flags import flag\n"
        "@dataclass(frozen=True)\nclass Sweep:\n    '''Sweep rates.'''\n"
        "    most: str = flag('the largest', 'LR', '1')\n"
    )
    (folder / "sweep.py").write_text("def run(options):\n    print('up to', options.most)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "others", lambda group: {"sweep": "lab.options:Sweep"})
    assert main(["sweep", "-most=2"]) == 0
    assert capsys.readouterr().out == "up to 2\n"
    assert parse(["sweep"])[1].most == "1"
