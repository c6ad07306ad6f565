"""What is said where a GPU, its driver or a library is missing: one message with the remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.libraries import cudnn, wheel
from osucaffe.backends.cuda.runtime import startup
from osucaffe.backends.cuda.runtime.startup import import_cupy, load_cublas, load_nccl
from osucaffe.cli import main
from osucaffe.cli.machine.gpus import describe_gpus
from osucaffe.errors import UserError
from tests.backends.cuda.simulated import fake_cupy

PROPERTIES = {"name": b"NVIDIA H200", "major": 9, "minor": 0, "multiProcessorCount": 132}


class Missing:
    """Lets the import of a module fail, as an entry of sys.meta_path."""

    def __init__(self, name: str, error: ImportError) -> None:
        self.name, self.error = name, error

    def find_spec(self, name: str, *_: Any) -> None:
        if name == self.name:
            raise self.error


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """cuDNN is looked for anew."""
    cudnn.load.cache_clear()
    yield
    cudnn.load.cache_clear()


def fail_import(monkeypatch: pytest.MonkeyPatch, name: str, error: ImportError) -> None:
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(name, error), *sys.meta_path])


def provide(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> Any:
    module = ModuleType(name)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)
    return module


class RuntimeFailure(Exception):
    """As CuPy's CUDARuntimeError."""


def provide_cupy(monkeypatch: pytest.MonkeyPatch, count: int | str = 1, **runtime: Any) -> Any:
    """A CuPy with so many GPUs; text: what counting them fails with."""

    def get_count() -> int:
        if isinstance(count, str):
            raise RuntimeFailure(count)
        return count

    made = SimpleNamespace(
        getDeviceCount=get_count, CUDARuntimeError=RuntimeFailure,
        getDeviceProperties=lambda number: PROPERTIES,
        **{"runtimeGetVersion": lambda: 13000, "driverGetVersion": lambda: 13010} | runtime,
    )  # fmt: skip
    device = SimpleNamespace(mem_info=(100 * 2**30, 140 * 2**30))
    nccl = SimpleNamespace(available=True, get_version=lambda: 22703)
    cuda = SimpleNamespace(runtime=made, Device=lambda number: device, nccl=nccl)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    provide_libraries(monkeypatch)
    return provide(monkeypatch, "cupy", cuda=cuda, __version__="14.0.1")


def provide_libraries(monkeypatch: pytest.MonkeyPatch, **content: Any) -> None:
    """NVRTC, and what else is given."""
    nvrtc = SimpleNamespace(getVersion=lambda: (13, 2))
    provide(monkeypatch, "cupy_backends.cuda.libs", **{"nvrtc": nvrtc} | content)


@pytest.mark.parametrize("driver", [True, False])
def test_without_cupy(driver: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_import(monkeypatch, "cupy", ModuleNotFoundError("No module named 'cupy'", name="cupy"))
    monkeypatch.setattr(startup, "_has_driver", lambda: driver)
    with pytest.raises(UserError, match=r'needs CuPy: pip install "osucaffe\[cuda13\]"') as raised:
        import_cupy()
    assert ("no NVIDIA driver is there" in str(raised.value)) != driver
    assert "needs CuPy" in describe_gpus("all")["GPU"]


@pytest.mark.parametrize(
    "error",
    [
        # as CuPy frames it
        ImportError(
            "\n====\nFailed to import CuPy.\n\nOriginal error:\n  ImportError: no _core\n=="
        ),
        ModuleNotFoundError("no _core", name="cupy._core"),
        ImportError("no _core\nmore\nlines"),
    ],
)
def test_cupy_that_does_not_load(monkeypatch: pytest.MonkeyPatch, error: ImportError) -> None:
    fail_import(monkeypatch, "cupy", error)
    with pytest.raises(
        UserError, match=r"cannot be loaded \(.*no _core\): remove .*then pip install"
    ):
        import_cupy()


@pytest.mark.parametrize(
    ("count", "driver", "cuda", "said"),
    [
        ("cudaErrorInsufficientDriver: x", 0, 13020, "no NVIDIA driver is there .*install it"),
        (
            "cudaErrorInsufficientDriver: x",
            12080,
            13020,
            r"knows CUDA 12\.8, this CuPy is of CUDA 13\.2: install driver 580 .*\[cuda12\]",
        ),
        ("cudaErrorInsufficientDriver: x", 11080, 12090, r"CUDA 11\.8.* install driver 525"),
        ("cudaErrorNoDevice: no device", 13020, 13020, "no GPU is there: .*CUDA_VISIBLE_DEVICES"),
        (0, 13020, 13020, "no GPU is there: .*CUDA_VISIBLE_DEVICES"),
        (
            "cudaErrorUnknown: so",
            13020,
            13020,
            r"can be used \(cudaErrorUnknown: so\): .*nvidia-smi",
        ),
    ],
)
def test_no_gpu(
    count: int | str, driver: int, cuda: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"driverGetVersion": lambda: driver, "runtimeGetVersion": lambda: cuda}
    provide_cupy(monkeypatch, count, **versions)
    with pytest.raises(UserError, match=said):
        import_cupy()


@pytest.mark.parametrize("error", [RuntimeError, ImportError])  # of CuPy 14, of its other loaders
def test_libraries_that_are_missing(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error('Failure finding "libnvrtc.so.13"\nand more')

    cupy = provide_cupy(monkeypatch, runtimeGetVersion=lambda: 12090)
    cupy.cuda.nccl.available = False
    with pytest.raises(UserError, match=r'several GPUs.* pip install "osucaffe\[nccl12\]"'):
        load_nccl()
    with pytest.raises(UserError, match=r'cuBLAS .*pip install "osucaffe\[cuda12\]"'):
        load_cublas()
    provide_libraries(monkeypatch, nvrtc=SimpleNamespace(getVersion=fail))
    with pytest.raises(UserError, match=r'compiler .*nvrtc\.so\.13"\): .*\[cuda12\]"') as found:
        import_cupy()
    assert "\n" not in str(found.value)


def test_a_gpu_that_does_not_exist(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    provide_cupy(monkeypatch, 2)
    solver = str(Path(__file__).parents[3] / "models" / "lenet" / "solver.prototxt")
    assert main(["train", "--solver", solver, "--gpu", "9"]) == 1
    assert capsys.readouterr().err == (
        "osucaffe: GPU 9 does not exist: there are 2, numbered from 0 "
        "(`osucaffe device_query` lists them)\n"
    )
    with pytest.raises(UserError, match="--gpu 9: there are 2 GPUs"):
        describe_gpus("0,9")
    with pytest.raises(UserError, match="--gpu first: give numbers"):
        describe_gpus("first")


def test_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from osucaffe.backends.cuda import gpu

    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(gpu, "import_cupy", fake_cupy)
    cuda = Cuda()
    cuda.cupy = SimpleNamespace(cuda=cuda.cupy.cuda, empty=fail)
    cuda.device = SimpleNamespace(id=0, mem_info=(2**30, 80 * 2**30))
    with pytest.raises(UserError, match=r"GPU 0 .* 8\.00 GiB more .* 1\.00 of 80\.00 .* batch"):
        cuda.allocate(8 * 2**30)


@pytest.mark.parametrize(
    "said",
    ["cudaErrorMemoryAllocation: out of memory", "CUDNN_STATUS_ALLOC_FAILED", "status 3"],
)
def test_out_of_memory_inside_a_library(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    from osucaffe.backends.cuda import backend, gpu
    from osucaffe.backends.cuda.libraries import cublaslt

    def fail(*_: Any) -> None:
        cublaslt.check(3) if said == "status 3" else None
        raise RuntimeError(said)

    monkeypatch.setattr(gpu, "import_cupy", fake_cupy)
    monkeypatch.setattr(backend, "capture", lambda *_: fail)
    with pytest.raises(UserError, match=r"GPU is out of memory .* lower the batch size"):
        Cuda().capture([])()
    monkeypatch.setattr(backend.registry, "prepare", fail)
    with pytest.raises(UserError, match="GPU is out of memory"):
        Cuda().prepare(None)  # type: ignore[arg-type]


def test_other_errors_of_libraries_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from osucaffe.backends.cuda import backend, gpu
    from osucaffe.backends.cuda.libraries import cublaslt

    monkeypatch.setattr(gpu, "import_cupy", fake_cupy)
    monkeypatch.setattr(backend, "capture", lambda *_: lambda: cublaslt.check(7))
    with pytest.raises(RuntimeError, match="status 7"):
        Cuda().capture([])()


def provide_cudnn(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """A library of cuDNN of this version."""

    class GetVersion:
        restype: Any = None

        def __call__(self) -> int:
            return version

    made = SimpleNamespace(cudnnGetVersion=GetVersion())
    monkeypatch.setattr(cudnn, "_open", lambda: made)


def test_without_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheel.ctypes, "CDLL", fail)
    with pytest.raises(UserError, match=r'libcudnn\.so\.9: .*pip install "osucaffe\[cuda13\]"'):
        cudnn.load()
    provide_cupy(monkeypatch)
    assert describe_gpus("all")["cuDNN"].startswith("none: a GPU needs cuDNN 9")


@pytest.mark.parametrize(("version", "said"), [(91299, r"9\.12"), (100000, r"10\.0")])
def test_other_versions_of_cudnn_are_refused(
    monkeypatch: pytest.MonkeyPatch, version: int, said: str
) -> None:
    provide_cudnn(monkeypatch, version)
    with pytest.raises(UserError, match=rf"cuDNN {said} .* 9\.13 .*pip install --upgrade"):
        cudnn.load()


def test_everything_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    provide_cupy(monkeypatch, 2)
    provide_cudnn(monkeypatch, 91301)
    library = SimpleNamespace(
        create=lambda: 1, getVersion=lambda handle: 130001, destroy=lambda handle: None
    )
    provide_libraries(monkeypatch, cublas=library)
    rows = describe_gpus("1")
    assert rows.pop("Driver").endswith("for CUDA up to 13.1")
    assert rows == {
        "GPU 1": "NVIDIA H200, compute capability 9.0, 132 multiprocessors, "
        "100.0 of 140.0 GiB free",
        "CUDA": "13.0, CuPy 14.0.1",
        "cuDNN": "9.13.1",
        "cuBLAS": "13.0.1",
        "NCCL": "2.27.3",
    }
