"""The documentation is a site: its links lead somewhere, and it fetches nothing from elsewhere."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from osucaffe.cli import COMMANDS, parse
from tests.processes import python
from tests.project import tour

ROOT = Path(__file__).parents[2]
OUTER = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)=["']?(?:https?:)?//[^>]*>""")


@pytest.mark.slow
def test_the_site(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = ["-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = python(*command, timeout=1800, NO_MKDOCS_2_WARNING="1")
    assert done.returncode == 0, done.stderr  # strict: a broken link is an error
    commands = (tmp_path / "commands" / "index.html").read_text()
    for command in COMMANDS:
        assert f'id="{command}"' in commands
    assert "usage: osucaffe train" in commands
    assert (tmp_path / "source" / "osucaffe" / "net.py" / "index.html").is_file()
    assert "osucaffe.net.Net" in (tmp_path / "api" / "index.html").read_text()
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        assert not OUTER.search(page.read_text()), page


def test_links_of_pages_lead_to_files_of_the_repository() -> None:
    """On a forge, too, which shows the pages as they are."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "models").rglob("*.md")]
    assert len(pages) > 15
    for page in pages:
        for link in re.findall(r"\]\((?!\w+:|#)([^)\s#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page}: {link}"


@pytest.mark.parametrize("script", ["slurm_cpu.sbatch", "slurm_gpu.sbatch"])
def test_what_slurm_runs_is_understood(script: str) -> None:
    text = (ROOT / "examples" / script).read_text().replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if line.startswith("srun"))
    words = shlex.split(line.replace('"$SLURM_CPUS_PER_TASK"', "16"))
    parse(words[words.index("osucaffe") + 1 :])


def test_what_kubernetes_runs_is_understood() -> None:
    """The whole file was held against the operator's schema (v2beta1) when it was written."""
    yaml = pytest.importorskip("yaml")
    spec = yaml.safe_load((ROOT / "examples" / "kubernetes_mpijob.yaml").read_text())["spec"]
    replicas = spec["mpiReplicaSpecs"]
    launcher, worker = (replicas[name]["template"]["spec"] for name in ("Launcher", "Worker"))
    (container,) = launcher["containers"]
    words = container["args"]
    parse(words[words.index("osucaffe") + 1 :])
    ranks = int(words[words.index("-n") + 1])
    assert ranks == spec["slotsPerWorker"] * replicas["Worker"]["replicas"]
    (container,) = worker["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == spec["slotsPerWorker"]
    volumes = {volume["name"] for volume in worker["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def lines_of(file: Path, names: list[str]) -> int:
    """The lines of these functions, classes or methods in a file; all of it, if none is named."""
    text = file.read_text()
    if not names:
        return len(text.splitlines())
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    found[f"{node.name}.{each.name}"] = each
    return sum((found[name].end_lineno or 0) - found[name].lineno + 1 for name in names)


def test_the_tour_takes_an_hour() -> None:
    text = (ROOT / "docs" / "tour.md").read_text()
    links = re.findall(r"\[([^\]]+\.(?:py|cu))(?:: ([^\]]+))?\]\(\.\./([^)]+)\)", text)
    assert len(links) > 25
    total = 0
    for shown, names, path in links:
        assert path.endswith(shown)
        total += lines_of(ROOT / path, names.split(", ") if names else [])
    assert total <= 4000


def test_what_the_tour_points_to_is_there() -> None:
    text = (ROOT / "docs" / "tour.md").read_text()
    for path, name in re.findall(r"`((?:\w+/)*\w+\.py): ([\w.]+)`", text):
        if "COMMAND" not in path:
            assert lines_of(ROOT / "osucaffe" / path, [name]) > 0


def test_the_tour_lists_what_an_iteration_runs() -> None:
    """Where this fails, put what `python -m tests.project.tour` prints into docs/tour.md."""
    listed = "\n".join(tour.lines())
    assert f"```\n{listed}\n```" in (ROOT / "docs" / "tour.md").read_text()
