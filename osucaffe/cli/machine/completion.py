"""`osucaffe completion`: scripts that complete commands and options in a shell."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from importlib import import_module

from .options import Completion

Command = tuple[str, argparse.ArgumentParser]
"""The words of a command ("data mnist"), and its parser."""

_BASH = """\
_osucaffe() {
  local index word first= second= words= current=${COMP_WORDS[COMP_CWORD]}
  local previous=${COMP_WORDS[COMP_CWORD-1]}
  for ((index = 1; index < COMP_CWORD; index++)); do
    word=${COMP_WORDS[index]}
    case $word in
      -*) ;;
      *) if [ -z "$first" ]; then first=$word; elif [ -z "$second" ]; then second=$word; fi ;;
    esac
  done
  case "$first $second" in
%(commands)s
  esac
  case "$first $previous" in
%(values)s
  esac
  COMPREPLY=( $(compgen -W "$words" -- "$current") )
}
complete -o default -F _osucaffe osucaffe
"""
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def run(options: Completion) -> None:
    """Print the script."""
    root = import_module("..", __package__).make_parser(whole=True)
    commands = list(_walk("", root))
    if options.shell == "fish":
        print("\n".join(_fish(commands)))
        return
    print((_ZSH if options.shell == "zsh" else "") + _bash(commands), end="")


def _walk(path: str, parser: argparse.ArgumentParser) -> Iterator[Command]:
    """A parser, and those of its commands."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from _walk(f"{path} {name}".strip(), child)


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [
        action
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    ]


def _bash(commands: list[Command]) -> str:
    """A case for the words that may follow a command, and one for those after an option."""
    following, values = [], []
    for path, parser in sorted(commands, key=lambda command: -len(command[0].split())):
        first, _, second = path.partition(" ")
        words = [name for action in _options(parser) for name in action.option_strings]
        for action in parser._actions:
            if not action.option_strings and action.choices:
                words += map(str, action.choices)
            elif action.choices and not second:
                names = "|".join(f'"{first} {name}"' for name in action.option_strings)
                values.append(
                    f"    {names}) words={shlex.quote(' '.join(map(str, action.choices)))} ;;"
                )
        pattern = f'"{first} {second}"' if second else f'"{first} "*'
        following.append(f"    {pattern}) words={shlex.quote(' '.join(words))} ;;")
    return _BASH % {"commands": "\n".join(following), "values": "\n".join(values)}


def _fish(commands: list[Command]) -> Iterator[str]:
    """A line for each command, and for each option."""
    for path, parser in commands:
        conditions = " and ".join(f"__fish_seen_subcommand_from {word}" for word in path.split())
        when = f"-n {shlex.quote(conditions.replace(' and ', '; and ') or '__fish_use_subcommand')}"
        for action in parser._actions:
            if action.help == argparse.SUPPRESS:
                continue
            help = f"-d {shlex.quote((action.help or '').replace('%%', '%'))}"
            for child in action._get_subactions() if hasattr(action, "_get_subactions") else ():
                about = shlex.quote(child.help or "")
                yield f"complete -c osucaffe {when} -f -a {child.dest} -d {about}"
            for name in action.option_strings:
                value = " -r" if action.nargs != 0 else ""
                if action.choices:
                    value += f" -f -a {shlex.quote(' '.join(map(str, action.choices)))}"
                form = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                yield f"complete -c osucaffe {when} {form}{value} {help}"
