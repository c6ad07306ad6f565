"""Words that are not ours any more: names in code, and phrases in code, messages and docs.

The glossary in CONTRIBUTING.md has those to use instead.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

NAMES = re.compile(
    r"\b(?:_?(?:MOST|LEAST|ENOUGH)_\w+"
    r"|thin_boxes|judge_boxes|overlap_of|place_among"
    r"|roi_sampling\w*|roi_average_pooling\w*|RoiSampling\w*|RoiAveragePooling\w*"
    r"|past_means|past_variances|finish_gradient|turn_filters|turned_rows_descriptor"
    r"|give_memory|give_zeros|is_open|spoil_outputs|only_unless|look_at|gives_none"
    r"|past_weight|drop_notes|MAPS_\w+|Followed|NotedPushing|Pushing|Nowhere)\b"
)
PHRASES = re.compile(
    r"\banew\b|\bdoes not go with\b|\bdo not go with\b|\bin the midst\b|\bwithout a word\b"
    r"|\bKept are\b|\bnot at hand\b|\bleave one of them out\b|\bNothing should end\b"
    r"|(?<!here )\bis no (?:LMDB|file|name|number|whole|group|list|image|picture|class|layer)\b"
    r"|(?<!here )\bare no (?:numbers|images|pictures|gradients|labels|losses)\b"
    r"|\b(?:images|batches|ms|MB|GB|bytes|records|calls) an? (?:second|iteration|GPU|rank|host)\b",
    re.IGNORECASE,
)
HEADER = re.compile(r'\A(?:#![^\n]*\n)?(?:"""|//\s*)Owns\b')


def files(pattern: str, *folders: str) -> list[Path]:
    """Those of some folders, without what other programs write."""
    found = [file for folder in folders for file in (ROOT / folder).rglob(pattern)]
    return [file for file in found if file.name not in ("test_words.py", "caffe_pb2.pyi")]


CODE = [
    *files("*.py", "osucaffe", "tests", "benchmarks", "examples", "models"),
    *files("*.cu*", "osucaffe"),
]
DOCS = [*files("*.md", "docs", "models", "examples"), ROOT / "README.md"]


def found(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    """The places where it occurs."""
    return [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path in paths
        for text in [path.read_text(encoding="utf-8", errors="replace")]
        for match in pattern.finditer(text)
    ]


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        pytest.param(NAMES, CODE + DOCS, id="names"),
        pytest.param(
            PHRASES,
            [path for path in CODE if path.relative_to(ROOT).parts[0] == "osucaffe"] + DOCS,
            id="phrases",
        ),
        pytest.param(HEADER, CODE, id="headers"),
    ],
)
def test_old_words(pattern: re.Pattern[str], paths: list[Path]) -> None:
    assert found(pattern, paths) == []
