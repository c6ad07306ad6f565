"""What the site has besides the pages of docs/: the commands' reference, in its page, and the
sources that pages link to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SHOWN_AS = {".py": "python", ".cu": "cuda", ".yaml": "yaml", ".sbatch": "bash", ".json": "json"}
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    waiting = [(page.src_uri, page.content_string) for page in files.documentation_pages()]
    seen = {uri for uri, _ in waiting}
    while waiting:  # pages outside of docs/ link to others
        for uri, path in _outside(*waiting.pop()):
            if uri in seen:
                continue
            seen.add(uri)
            if path.suffix in (".png", ".jpg", ".svg"):
                files.append(File.generated(config, uri, content=path.read_bytes()))
                continue
            text = path.read_text() if path.suffix == ".md" else _shown(path)
            files.append(File.generated(config, uri, content=text))
            waiting.append((uri, text))
    return files


def on_page_markdown(markdown: str, /, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to what lies outside of docs/ lead to the page that shows it."""
    uri = page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        path = _path(uri, match[1])
        if path is None or not path.exists():
            return match[1]  # as it is: MkDocs says what is wrong with it
        start = PurePosixPath(uri).parent
        return quote(os.path.relpath(_uri(path), start))

    return LINK.sub(moved, markdown) + (_commands() if uri == "commands.md" else "")


def _outside(uri: str, text: str) -> Iterator[tuple[str, Path]]:
    """The files outside of docs/ that a page links to, and where the site has them."""
    for link in LINK.findall(text):
        path = _path(uri, link)
        if path and path.exists() and not path.is_relative_to(ROOT / "docs"):
            yield _uri(path), path


def _path(uri: str, link: str) -> Path | None:
    """The file of the project that a link of a page means."""
    start = ROOT / "docs" / uri
    if uri.startswith("source/"):
        start = ROOT / uri.removeprefix("source/")
    path = Path(os.path.normpath(start.parent / link))
    return path if path.is_relative_to(ROOT) else None


def _uri(path: Path) -> str:
    """Where the site has a file of the project."""
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    name = f"source/{path.relative_to(ROOT).as_posix()}"
    return name if path.suffix in (".md", ".png", ".jpg", ".svg") else f"{name}.md"


def _shown(path: Path) -> str:
    """A page that shows a file, or what a folder holds."""
    name = path.relative_to(ROOT)
    if path.is_dir():
        inside = sorted(each for each in path.iterdir() if not each.name.startswith(("_", ".")))
        lines = [f"- [{each.name}]({path.name}/{each.name})" for each in inside]
        return f"# {name}/\n\n" + "\n".join(lines)
    text = path.read_text().replace("\n```", "\n ```")
    return f"# {name}\n\n```{SHOWN_AS.get(path.suffix, 'text')}\n{text}\n```\n"


def _commands() -> str:
    """The reference of the commands, as their parser tells it."""
    os.environ["COLUMNS"] = "88"
    from osucaffe.cli import COMMANDS, make_parser

    parser = make_parser(whole=True)
    choices = next(a.choices for a in parser._actions if a.dest == "command" or a.choices)
    parts = [""]
    for name in COMMANDS:
        parts.append(f"## {name}\n\n```text\n{choices[name].format_help()}```\n")
    return "\n".join(parts)
