"""cuDNN's own library, by its C interface: what it proposes for GPUs that are not here."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from osucaffe.backends.cuda.convolution.cudnn_graph import Convolution
from osucaffe.backends.cuda.convolution.cudnn_search import Configuration, refused, worth_timing
from osucaffe.backends.cuda.convolution.problem import Problem
from osucaffe.backends.cuda.gpu import PRECISIONS
from osucaffe.backends.cuda.libraries import cudnn
from osucaffe.backends.cuda.libraries.cudnn import CudnnError, Handle, Plan, build
from osucaffe.backends.cuda.libraries.cudnn_enums import Attribute, DescriptorType, HeurMode
from osucaffe.backends.cuda.runtime.device import NEEDS

from ..devices import DEVICES, as_cudnn_says

SYMBOLS = (
    "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col", "cuModuleLoadData", "cuModuleUnload",
    "cuModuleGetFunction", "cuGetErrorString",
)  # fmt: skip
"""What cuDNN's libraries want of the driver's when they are loaded."""

SAME = (1, 1), (1, 1), (1, 1)
LAYERS = {
    "LeNet conv2": Problem(
        (64, 20, 12, 12), (50, 20, 5, 5), (64, 50, 8, 8), ((1, 1), (0, 0), (1, 1)), 1
    ),
    "AlexNet conv2": Problem(
        (256, 96, 27, 27), (256, 48, 5, 5), (256, 256, 27, 27), ((1, 1), (2, 2), (1, 1)), 2
    ),
    "GoogLeNet 3a": Problem((128, 96, 28, 28), (128, 96, 3, 3), (128, 128, 28, 28), SAME, 1),
    "ResNet-50, strided": Problem(
        (32, 256, 56, 56), (512, 256, 1, 1), (32, 512, 28, 28), ((2, 2), (0, 0), (1, 1)), 1
    ),
    "dilated": Problem(
        (4, 64, 41, 41), (64, 64, 3, 3), (4, 64, 41, 41), ((1, 1), (4, 4), (4, 4)), 1
    ),
}


def _folders() -> list[Path]:
    """Of NVIDIA's wheels."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(each) for each in (spec.submodule_search_locations or [])] if spec else []


@functools.cache
def _load() -> None:
    """Load cuDNN on a machine without a driver. Skips where the wheels are not there."""
    if not any((folder / "cudnn").exists() for folder in _folders()):
        pytest.skip("cuDNN is not installed")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        if shutil.which("gcc") is None:
            pytest.skip("there is neither a driver nor gcc to make a stand-in for its library")
        _load_stand_in()
    for name in "libcudart", "libnvrtc", "libcublasLt", "libcublas":
        found = [each for folder in _folders() for each in folder.glob(f"*/lib/{name}.so.1?")]
        if not found:
            pytest.skip(f"{name} is not installed")
        ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)
    cudnn.load()


def _load_stand_in() -> None:
    """A library that has the driver's name, and functions that fail."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "stand_in.c", Path(folder) / "libcuda.so.1"
        source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in SYMBOLS))
        flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
        subprocess.run(["gcc", *flags, "-o", library, source], check=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


@pytest.fixture(autouse=True)
def library() -> None:
    _load()


class DescribedDevice(Handle):
    """Stands for a device that is not here: cuDNN proposes plans for it, which cannot be run.

    text: its properties as cuDNN writes them, in JSON.
    """

    def __init__(self, text: str) -> None:
        properties = build(
            DescriptorType.DEVICEPROP, {Attribute.DEVICEPROP_JSON_REPRESENTATION: text}
        )
        self.attributes = {
            DescriptorType.ENGINEHEUR: {Attribute.ENGINEHEUR_DEVICEPROP: properties},
            DescriptorType.ENGINE: {Attribute.ENGINE_DEVICEPROP: properties},
            DescriptorType.EXECUTION_PLAN: {Attribute.EXECUTION_PLAN_DEVICEPROP: properties},
        }


def describe(name: str) -> DescribedDevice:
    return DescribedDevice(as_cudnn_says(DEVICES[name]))


def convolution(layer: str, operation: str, precision: str) -> Convolution:
    return Convolution.of(LAYERS[layer], operation, precision, PRECISIONS[precision])


@pytest.mark.parametrize("operation", ["forward", "data", "filter"])
@pytest.mark.parametrize(
    ("gpu", "precision"),
    [
        (gpu, precision)
        for gpu, device in DEVICES.items()
        for precision, least in NEEDS.items()
        if device.compute_capability >= least
    ],
)
def test_every_gpu_has_plans(gpu: str, precision: str, operation: str) -> None:
    place = describe(gpu)
    for layer in LAYERS:
        found = convolution(layer, operation, precision)
        assert worth_timing(found, place, set()), layer


@pytest.mark.parametrize("operation", ["forward", "data"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_fused_graphs_are_known(operation: str, precision: str) -> None:
    """Whether there are plans for them is cuDNN's business; the graphs are."""
    fused: dict[str, Any] = {"relu": 0.0}
    if operation == "forward":
        fused["bias"] = "float32"
    found = convolution("GoogLeNet 3a", operation, precision)
    found.__class__(**{**found.__dict__, **fused}).graph(describe("H200"))


@pytest.mark.parametrize("operation", ["forward", "data", "filter"])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_names_tell_proposals_apart(operation: str, precision: str) -> None:
    """A name without the values of its knobs would build another plan than the one timed."""
    place = describe("H200")
    found = convolution("ResNet-50, strided", operation, precision)
    offered = cudnn.proposals(place, found.graph(place), HeurMode.A, 100)
    names = [str(each.configuration) for each in offered]
    assert len(names) > 5
    assert len({*names}) == len(names)


def test_a_plan_is_built_again_from_its_name() -> None:
    place = describe("H200")
    found = convolution("GoogLeNet 3a", "forward", "bf16")
    [(name, plan, _), *others] = worth_timing(found, place, set())
    assert others
    configuration = Configuration.parse(name)
    assert str(configuration) == name
    graph = found.graph(place)
    again = Plan.build(place, cudnn.configure(place, graph, configuration))
    assert again.workspace == plan.workspace


def test_a_plan_outlives_the_process() -> None:
    place = describe("H200")
    [(_, plan, _), *_] = worth_timing(convolution("GoogLeNet 3a", "data", "bf16"), place, set())
    text = str(plan)
    again = Plan.parse(place, text)
    assert again.workspace == plan.workspace
    for broken in "", "{}", text[:-9], text.replace("engineId", "engine"):
        with pytest.raises(CudnnError, match="cuDNN: "):
            Plan.parse(place, broken)


@pytest.mark.parametrize("name", ["", "eng", "engine 4", "eng4_k", "eng4_k24=x"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Configuration.parse(name)


def test_fp32_takes_no_plan_that_promises_less() -> None:
    place = describe("H200")
    found = convolution("GoogLeNet 3a", "forward", "fp32")
    offered = [*cudnn.proposals(place, found.graph(place), HeurMode.A, 100)]
    assert any(refused(each, found) for each in offered)
    tf32 = convolution("GoogLeNet 3a", "forward", "tf32")
    assert not all(refused(each, tf32) for each in offered)


def test_cudnn_says_what_is_wrong() -> None:
    place = describe("H200")
    found = convolution("GoogLeNet 3a", "forward", "bf16")
    with pytest.raises(CudnnError, match=r"cuDNN: .* failed with status .*: .+") as error:
        cudnn.configure(place, found.graph(place), Configuration(9999, ()))
    assert "\n" not in str(error.value)
