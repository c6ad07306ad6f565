"""Settings that Python layers' nets write in param_str."""

from __future__ import annotations

import pytest

from osucaffe.forks.rcnn.settings import MAX_DEPTH, MAX_LETTERS, read_settings

EXPECTED = {"feat_stride": 16, "scales": [4, 8.5]}


@pytest.mark.parametrize(
    "text",
    [
        "'feat_stride': 16 \n'scales': !!python/tuple [4, 8.5]",  # py-faster-rcnn's nets for COCO
        "{'feat_stride': 16, 'scales': [4, 8.5]}",
        '{"feat_stride":16,"scales":[4,8.5]}',
        "{'feat_stride': 16, 'scales': (4, 8.5,)}",  # Python's
        "'feat_stride': 16, 'scales': [4, 8.5]",
        "'feat_stride': 16,\n'scales':\n [4,\n 8.5]\n",
        "---\nfeat_stride: 16  # of conv5\nscales:\n  - 4\n  - 8.5",
        "scales: !!python/tuple\n- 4\n- 8.5\nfeat_stride: 16",
        "  scales:\n    -\n      4\n    - 8.5\n\n  feat_stride:\n    16",
    ],
)
def test_forms_of_the_same_settings(text: str) -> None:
    assert read_settings(text) == EXPECTED


def test_values() -> None:
    assert read_settings("a: Yes\nb: ~\nc: it's#1, d: 'it''s: #1' # so\ne: \"x\\\"y\"") == {
        "a": True, "b": None, "c": "it's#1", "d": "it's: #1", "e": 'x"y',
    }  # fmt: skip
    assert read_settings("[-1, +2., 1e-3, 0x10, http://a:80/b, 1-2]") == [
        *(-1, 2.0, 1e-3, "0x10", "http://a:80/b", "1-2")
    ]
    nested = "a:\n - b: 1\n   c: [2, {d: 3}]\n - - 4\n   - 5\n -\nf: {}"
    assert read_settings(nested) == {"a": [{"b": 1, "c": [2, {"d": 3}]}, [4, 5], None], "f": {}}
    assert read_settings("  # nothing\n") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("!!python/object/apply:os.system ['ls']", "is not a tag of a plain value"),
        ("a: *b", "is not supported here"),
        ("a: 'b", "is not supported here"),
        ("a: 1\n b: 2", "'b' does not belong"),
        ("a: b: 2", "':' does not belong"),
        ("[1]: 2", "':' does not belong"),
        ("[1, 2", "expected ',', found the end"),
        ("{a 1}", "expected ':', found"),
        ("a: ,", "expected a value, found ','"),
        ("[" * 10_000, "levels deep"),
        ("- " * 10_000, "levels deep"),
        ("{a: " * (MAX_DEPTH + 2), "levels deep"),
        ("\n".join(" " * depth + "a:" for depth in range(MAX_DEPTH + 2)), "levels deep"),
        ("a" * (MAX_LETTERS + 1), "letters, more than"),
    ],
)
def test_what_is_no_settings(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_settings(text)
