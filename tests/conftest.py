"""What all tests share: fixtures, a fresh log, a full disk, kernels that are compiled once;
which tests need a GPU or an mpiexec; and what workers that run beside each other may take."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import numpy as np

ROOT = Path(__file__).resolve().parent.parent
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
"""Whether this is one of the processes that run tests beside each other."""
KERNELS = "OSUCAFFE_TEST_KERNELS"
"""The environment variable with the folder of compiled kernels."""
NO_GPU = "no GPU that CuPy sees"
KEPT = 7 * 24 * 3600
"""Seconds for which a kernel stays there: then it is compiled again, or gone."""

SLOW = (
    "backends/cuda/convolution",
    "backends/cuda/primitives",
    "backends/cuda/test_compile.py",
    "backends/cuda/test_described_devices.py",
    "benchmarks",
    "cli",
    "comm/gpu/test_copy_engine.py",
    "comm/gpu/test_ipc.py",
    "comm/gpu/test_kernels.py",
    "graph/test_naming.py",
    "models",
    "solvers/snapshots/test_resume.py",
    "test_steady.py",
    "project/test_worked_examples.py",
)
"""Of tests/, what compiles kernels, starts programs or trains for long: marked slow, these tests
are left to `make test`."""

if IS_WORKER:  # before NumPy and oneDNN are loaded: there are as many workers as cores
    for library in "OMP", "OPENBLAS":
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# Ranks that wait leave their cores to the tests beside them.
os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")

# Whatever net a test builds, in whatever process: each pass is verified.
os.environ.setdefault("OSUCAFFE_VERIFY", "1")

STATES: dict[int, tuple[object, object]] = {}
"""By identity: a random generator of a test's module, and its state before the first test there."""


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The files that C++ Caffe and its forks wrote."""
    return ROOT / "tests" / "fixtures"


@pytest.fixture(scope="session")
def formats(fixtures: Path) -> Path:
    """Those in Caffe's formats."""
    return fixtures / "formats"


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
def same_numbers(request: pytest.FixtureRequest) -> None:
    """A test draws from its module's generators, and from those of functions that the module
    imports, as if it were the first that does: which tests a worker ran before it must not change
    its numbers."""
    for generator in _generators(request.module):
        first = STATES.setdefault(id(generator), (generator, generator.bit_generator.state))[1]
        generator.bit_generator.state = first


@functools.cache
def _generators(module: ModuleType) -> list[np.random.Generator]:
    import numpy as np

    functions = (each for each in vars(module).values() if isinstance(each, FunctionType))
    spaces = [vars(module), *(each.__globals__ for each in functions)]
    values = (value for space in spaces for value in space.values())
    found = {id(value): value for value in values if isinstance(value, np.random.Generator)}
    return [*found.values()]


@pytest.fixture(scope="session", autouse=True)
def few_threads() -> None:
    """Workers beside each other build kernels with few threads each, and no processes."""
    if IS_WORKER:
        from osucaffe.backends.cuda.runtime import background
        from tests.backends.cuda.compiler import compile_here

        compile_here()
        background.MAX_THREADS = 2


@pytest.fixture(params=["threads", "processes"])
def readers_are(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What layers read with, if their sources can be sent to processes."""
    from osucaffe.data.ahead import processes

    most = 0 if request.param == "processes" else 1 << 10
    monkeypatch.setattr(processes, "MAX_READER_THREADS", most)


@pytest.fixture(autouse=True)
def fresh_log() -> Iterator[None]:
    """No test leaves log handlers or a level behind: importing pycaffe sets one."""
    logger = logging.getLogger("osucaffe")
    logger.setLevel(logging.NOTSET)
    yield
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of compiled kernels, which workers inherit, and later runs."""
    if IS_WORKER:
        return
    if hasattr(config, "cache"):
        os.environ[KERNELS] = str(config.cache.mkdir("kernels"))
        for file in Path(os.environ[KERNELS]).iterdir():
            if file.stat().st_mtime < time.time() - KEPT:
                file.unlink(missing_ok=True)
    else:  # with `-p no:cacheprovider`
        folder = tempfile.mkdtemp(prefix="osucaffe-tests-")
        os.environ[KERNELS] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell what workers leave out."""
    if getattr(terminalreporter.config.option, "dist", "no") != "no" and not _has_gpu():
        terminalreporter.write_line(f"{NO_GPU}: the tests marked gpu did not run")


@pytest.hookimpl(tryfirst=True)  # before tests are selected by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` where there is none, and those marked `ranks` where there is no
    mpiexec; mark what is slow; workers start ranks in one test at a time."""
    if IS_WORKER and not _has_gpu():  # a third of all: to report each takes a millisecond
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
    _skip(items, "gpu", _has_gpu, NO_GPU)
    _skip(items, "ranks", _has_mpiexec, "there is no mpiexec")
    for item in items:
        if item.path.relative_to(ROOT / "tests").as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    if IS_WORKER:
        for item in items:
            if item.get_closest_marker("ranks"):
                item.add_marker(pytest.mark.xdist_group("ranks"))


def _skip(items: list[pytest.Item], mark: str, is_there: Callable[[], bool], reason: str) -> None:
    marked = [item for item in items if item.get_closest_marker(mark)]
    if marked and not is_there():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def _has_mpiexec() -> bool:
    from tests.comm.ranks import MPIEXEC

    return MPIEXEC is not None


def _has_gpu() -> bool:
    if importlib.util.find_spec("cupy") is None:
        return False
    import cupy

    try:
        return cupy.cuda.runtime.getDeviceCount() > 0
    except cupy.cuda.runtime.CUDARuntimeError:
        return False
