"""Each field of each layer type, changed alone, changes what the net computes, or is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from osucaffe.layer import layer_types, messages_of
from osucaffe.proto import LayerParameter

from .cases import ALL
from .changes import Heard, fields_of, outcome, parsed, seen
from .files import make_files

FIELDS = LayerParameter.DESCRIPTOR.fields_by_name
QUICK = {"Dropout", "Embed", "HDF5Data", "ROIPooling"}
"""Types of several kinds, whose fields are few: the others are left to `make test-long`."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("files")
    make_files(path)
    return str(path)


@pytest.fixture
def heard() -> Iterator[Heard]:
    """What the package says, which is shown to nobody else."""
    logger, ears = logging.getLogger("osucaffe"), Heard()
    logger.addHandler(ears)
    logger.propagate = False
    yield ears
    logger.removeHandler(ears)
    logger.propagate = True


def test_every_type_has_a_net() -> None:
    assert {row.type for row in ALL} == set(layer_types())


@pytest.mark.parametrize(
    "type_",
    [pytest.param(each, marks=[] if each in QUICK else pytest.mark.long) for each in layer_types()],
)
def test_no_field_is_dropped_without_a_word(type_: str, folder: str, heard: Heard) -> None:
    bases = []
    for row in ALL:
        if row.type == type_:
            base = seen(parsed(row, folder), row, heard)
            assert base is not None, heard.lines
            bases.append((row, base))
    dropped = {}
    for message in messages_of(layer_types()[type_]):
        kind = FIELDS[message].message_type
        assert kind is not None
        for path in fields_of(kind, type_, f"{message}.", (kind.name,)):
            if found := outcome(bases, path, folder, heard):
                dropped[path] = found
    assert not dropped
