"""Owns what all tests share: fixtures' folder, fresh log, full disk, which tests need a GPU."""

from __future__ import annotations

import importlib.util
import logging
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The files that C++ Caffe wrote."""
    return ROOT / "tests" / "fixtures"


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """full_disk(size): a disk as good as full; writing a file beyond these bytes fails (EFBIG)."""

    @contextmanager
    def limit(size: int) -> Iterator[None]:
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)

    return limit


@pytest.fixture(autouse=True)
def fresh_log() -> Iterator[None]:
    """No test leaves log handlers behind."""
    yield
    logger = logging.getLogger("osucaffe")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU that CuPy sees"))


def _has_gpu() -> bool:
    if importlib.util.find_spec("cupy") is None:
        return False
    import cupy

    try:
        return cupy.cuda.runtime.getDeviceCount() > 0
    except cupy.cuda.runtime.CUDARuntimeError:
        return False
