"""Owns what the tests of the formats share: the files that C++ Caffe 1.0 wrote."""

from pathlib import Path

import pytest

FORMATS = Path(__file__).parents[1] / "fixtures" / "formats"


@pytest.fixture
def formats() -> Path:
    return FORMATS
