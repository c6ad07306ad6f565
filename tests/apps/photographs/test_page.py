"""docs/photos.md: its commands run as they stand, on pictures made here and, in the long test, on
the photographs that it names."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.cli.conftest import ROOT, Cli

from .photos import COLOURS, make_photos

pytest.importorskip("PIL")
PAGE = ROOT / "docs" / "photos.md"


def commands(*, fetch: bool) -> str:
    """The page's commands: those that fetch photographs to try it with, or all others."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    found = [block for block in blocks if block.startswith("apt-get") == fetch]
    assert found
    return "".join(found)


def run(cli: Cli, text: str) -> subprocess.CompletedProcess[str]:
    program = f'osucaffe() {{ "{sys.executable}" -m osucaffe "$@"; }}\n'
    return subprocess.run(
        ["bash", "-eu", "-c", program + text],
        cwd=cli.folder,
        env=cli.environment(),
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


def held_out(cli: Cli) -> list[str]:
    lines = (cli.folder / "data" / "val.txt").read_text().splitlines()
    return [line.rpartition(" ")[0] for line in lines]


@pytest.mark.long
def test_the_pages_commands_run_as_they_stand(cli: Cli) -> None:
    make_photos(cli.folder / "photos", 10)
    done = run(cli, commands(fetch=False))
    assert done.returncode == 0, done.stderr
    (score,) = re.findall(r"test\.py:\d+\] accuracy = (\S+)", done.stderr)
    assert float(score) > 0.9
    best = re.search(r"^photos/.*\n  \S+  (\w+)$", done.stdout, re.MULTILINE)
    assert best
    assert best[1] == held_out(cli)[0].partition("/")[0]
    page = (cli.folder / "report.html").read_text()
    for expected in ("Curves", "test accuracy", "Best predictions", *COLOURS):
        assert expected in page
    assert "next:\n\nosucaffe train --solver finetune/solver.prototxt --weights" in done.stdout


@pytest.mark.long
def test_on_the_photographs_that_it_names(cli: Cli) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        pytest.skip("not on Debian")
    fetched = run(cli, commands(fetch=True))
    if not list(cli.folder.glob("*.deb")):
        pytest.skip(f"the package cannot be had: {fetched.stderr}")
    assert fetched.returncode == 0, fetched.stderr
    done = run(cli, commands(fetch=False))
    assert done.returncode == 0, done.stderr
    made = re.search(r"^data: (\d+) images of (\d+) classes$", done.stdout, re.MULTILINE)
    assert made
    assert int(made[1]) >= 300
    assert int(made[2]) >= 4
    tests = re.findall(r"(?:^|\n)\S+ \S+ +\d+ test\.py:\d+\] accuracy = (\S+)", done.stderr)
    (accuracy,) = map(float, tests)
    assert accuracy > 0.55
    snapshots = cli.folder.glob("cifar10_quick/*.caffemodel")
    weights = max(snapshots, key=lambda path: int(path.stem.rpartition("_")[2]))
    names = held_out(cli)
    files = [f"photos/{name}" for name in names]
    model = ("--model", "cifar10_quick/deploy.prototxt", "--weights", str(weights))
    told = cli("classify", *model, "--top=1", *files)
    found = re.findall(r"^  \S+  (.+)$", told.out, re.MULTILINE)
    right = sum(name.partition("/")[0] == each for name, each in zip(names, found, strict=True))
    assert right / len(names) == pytest.approx(accuracy, abs=1e-5)
