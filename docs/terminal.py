"""Draws images/training.svg: what stands on a terminal while LeNet is trained. It is a real run.

.venv/bin/python docs/terminal.py
"""

from __future__ import annotations

import os
import pty
import re
import struct
import sys
import termios
from fcntl import ioctl
from html import escape
from itertools import groupby
from pathlib import Path

import pyte

COLUMNS, ROWS = 112, 20
CELL, LINE = 8.4, 18
COLOURS = {"default": "#d0d4dc", "cyan": "#6cc5d9", "green": "#8fd08a", "magenta": "#d58fd6"} | {
    "brown": "#e0c070",
    "yellow": "#e0c070",
    "red": "#f08080",
    "blue": "#80a8f0",
    "white": "#ffffff",
}
COMMAND = ["osucaffe", "train", "--solver", "models/lenet/solver.prototxt", "--max_iter", "2000"]
STOP = 1530
"""The iteration at which the picture is taken."""


def screen_of(command: list[str], stop: int) -> pyte.Screen:
    """The terminal when the live lines tell of iteration `stop`, or a later one."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(Path(__file__).parents[1])
        ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        program = str(Path(sys.executable).with_name(command[0]))
        os.execve(program, [program, *command[1:]], environment)
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    while not any(int(at) >= stop for at in re.findall(r" (\d+)/\d+ ", "\n".join(screen.display))):
        stream.feed(os.read(terminal, 1 << 12))
    os.kill(child, 9)
    os.waitpid(child, 0)
    return screen


def svg_of(screen: pyte.Screen, title: str) -> str:
    """The picture of a terminal."""
    width, height = CELL * COLUMNS + 24, LINE * ROWS + 52
    lines = []
    for row in range(ROWS):
        cells = [screen.buffer[row][column] for column in range(COLUMNS)]
        column = 0
        for (colour, bold), run in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
            text = "".join(cell.data for cell in run)
            if text.strip():
                fill = COLOURS.get(colour) or f"#{colour}"
                weight = ' font-weight="bold"' if bold else ""
                lines.append(
                    f'<text x="{12 + CELL * column:.1f}" y="{56 + LINE * row}" fill="{fill}"'
                    f'{weight} textLength="{CELL * len(text):.1f}" xml:space="preserve">'
                    f"{escape(text)}</text>"
                )
            column += len(text)
    dots = "".join(
        f'<circle cx="{20 + 18 * n}" cy="18" r="6" fill="{colour}"/>'
        for n, colour in enumerate(("#f06060", "#e0c050", "#60b060"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">'
        f'<rect width="100%" height="100%" rx="8" fill="#1e222a"/>{dots}'
        f'<text x="{width / 2:.0f}" y="23" fill="#9aa0aa" text-anchor="middle">{title}</text>\n'
        + "\n".join(lines)
        + "</svg>\n"
    )


if __name__ == "__main__":
    picture = svg_of(screen_of(COMMAND, STOP), " ".join(COMMAND))
    (Path(__file__).parent / "images" / "training.svg").write_text(picture)
