"""Prints the lowest versions that pyproject.toml allows, as constraints for pip.

Run as `python lowest.py EXTRA,EXTRA`: of what these extras and the package itself need.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def requirements(extras: str) -> Iterator[str]:
    """What these extras need, and those that they name."""
    for extra in filter(None, extras.split(",")):
        for requirement in PROJECT["optional-dependencies"][extra]:
            if own := re.match(r"osucaffe\[(.*)\]", requirement):
                yield from requirements(own[1])
            else:
                yield requirement


def main() -> None:
    lowest = {}  # what an extra says of a package counts more
    for requirement in [*PROJECT["dependencies"], *requirements(sys.argv[1])]:
        if found := re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", requirement):
            lowest[found[1]] = found[2]
    print(*(f"{name}=={version}.*" for name, version in lowest.items()), sep="\n")


if __name__ == "__main__":
    main()
