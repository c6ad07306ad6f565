"""The kernels over regions: run as C++ against the CPU's, and compiled for a GPU, in graphs too."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.primitives import regions
from osucaffe.backends.primitives.recording import arguments
from osucaffe.backends.tensor import Tensor
from tests.layers.nets import build, inputs

from ...cases import CASES, Case
from ...cases_regions import region_cases
from ...running import run_call
from ..lockstep import compiled, defines
from ..simulated import simulate, with_libraries

HEADER = """
#include <cmath>
#include <cstdint>
static int max(int a, int b) { return a > b ? a : b; }
static int min(int a, int b) { return a < b ? a : b; }
#define __device__
#define __global__
#define PDL_BEGIN
#define __forceinline__ inline
#define __fmul_rn(a, b) ((float)(a) * (float)(b))
#define __fadd_rn(a, b) ((float)(a) + (float)(b))
static struct { int x; } blockIdx, threadIdx, blockDim{1}, gridDim{1};
static float block_sum(float x) { return x; }
#define FOR_EACH(count) for (int64_t id = 0; id < (count); ++id)
"""


def own_cases() -> list[Case]:
    before = len(CASES)
    region_cases()
    own = CASES[before:]
    del CASES[before:]
    return own


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
def test_kernels_as_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels in one library, so that the compiler runs once."""
    launches: list[Any] = []
    monkeypatch.setattr(regions, "kernel", lambda file, name, **macros: (name, macros))
    monkeypatch.setattr(regions, "blocks_for", lambda count: 1)
    monkeypatch.setattr(regions, "launch", lambda kernel, grid, given: launches.append(
        (kernel, given)))  # fmt: skip
    found = [each for each in own_cases() if each.label]
    tensors: list[dict[str, Tensor]] = []
    for each in found:
        made = {
            name: Tensor(spec.shape, getattr(spec, "dtype", "float32") if name == "index" else
                         "float32") for name, spec in each.tensors.items()
        }  # fmt: skip
        tensors.append(made)
        getattr(regions, each.name)(None, arguments(each.name, made, each.settings))
    source = (
        Path(regions.__file__).parents[1] / "kernels" / "primitives" / "regions.cu"
    ).read_text()
    parts, cases = [HEADER], []
    spaces: list[dict[str, Any]] = []
    for number, ((name, macros), given) in enumerate(launches):
        if macros not in spaces:
            spaces.append(macros)
            parts.append(f"namespace n{len(spaces) - 1} {{\n{defines(macros)}")
            parts.append(source.replace('extern "C" ', "") + "\n}")
            parts.extend(f"#undef {macro}" for macro in macros)
        types = ["int*" if getattr(each, "dtype", "") == "int32" else "float*" for each in given]
        passed = ", ".join(
            f"*({np.dtype(each.dtype).name}_t*)p[{i}]" if isinstance(each, np.generic)
            else f"({types[i]})p[{i}]" for i, each in enumerate(given)
        )  # fmt: skip
        cases.append(f"if (number == {number}) n{spaces.index(macros)}::{name}({passed});")
    body = "\n".join(cases)
    parts.append(f'extern "C" void run(int number, void** p) {{\n{body}\n}}')
    run = compiled("\n".join(parts), tmp_path)

    for number, (each, made) in enumerate(zip(found, tensors, strict=True)):
        arrays = {}
        for name, spec in each.tensors.items():
            dtype = np.int32 if made[name].dtype == "int32" else np.float32
            arrays[name] = np.full(spec.shape, -7, dtype)
            if isinstance(spec, np.ndarray):
                arrays[name] = spec.astype(dtype, order="C")
        by_tensor = {id(made[name]): array for name, array in arrays.items()}
        held = [by_tensor.get(id(value), np.array(value)) for value in launches[number][1]]
        run(number, (ctypes.c_void_p * len(held))(*(array.ctypes.data for array in held)))
        for name, wanted in each.expected.items():
            np.testing.assert_allclose(arrays[name], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_kernels_compile(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    backend = Cuda(precision=precision, graphs=False)
    for each in own_cases():
        run_call(backend, each.name, each.tensors, each.settings)


def test_a_roi_of_no_image_gives_zeros() -> None:
    tensors = {"x": np.ones((1, 1, 4, 4)), "rois": np.array([[-1.0, 0, 0, 3, 3]]),
               "y": next(iter(own_cases())).tensors["y"]}  # fmt: skip
    tensors["y"] = type(tensors["y"])((1, 1, 3, 3))
    found = run_call(Cpu(), "roi_sampling", tensors, {"scale": 1.0, "pad": 0.0})
    assert not found["y"].any()


LAYERS = [
    ("ROIPooling", "x r", "roi_pooling_param { pooled_h: 2 pooled_w: 3 }"),
    ("ROIAlign", "x r", "roi_pooling_param { pooled_h: 2 pooled_w: 3 }"),
    ("ROIWarping", "x moved", "roi_warping_param { pooled_h: 2 pooled_w: 3 }"),
    ("MaskResize", "x", "mask_resize_param { output_height: 3 output_width: 9 }"),
    ("MaskPooling", "x mask", ""),
    (
        "MultiStageMeanfield",
        "x z i",
        "multi_stage_meanfield_param { theta_alpha: 9 theta_beta: 3 "
        "theta_gamma: 3 num_iterations: 2 }",
    ),
    ("PSROIPooling", "x r", "psroi_pooling_param { spatial_scale: 1 output_dim: 2 group_size: 2 }"),
    ("Reorg", "x0", "reorg_param { stride: 1 reverse: true }"),
    ("ShuffleChannel", "x", "shuffle_channel_param { group: 2 }"),
    ("Axpy", "a x z", ""),
    ("ReLU6", "x", ""),
    ("InnerProduct", "x", "inner_product_param { num_output: 5 normalize: true }"),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_of_forks_are_prepared(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind convolutions, so that what they read may lie in any order."""
    simulate(monkeypatch)
    text = inputs({"i": (2, 8, 5, 6), "r": (7, 5), "l": (7,), "t5": (2, 1, 4, 5)})
    for top, kernel in (("x", "1"), ("z", "1"), ("a", "1")):
        text += (
            f'layer {{ name: "{top}" type: "Convolution" bottom: "i" top: "{top}0" '
            f"convolution_param {{ num_output: 8 kernel_size: {kernel} }} }}"
        )
    text += (
        'layer { name: "pool" type: "Pooling" bottom: "a0" top: "a" '
        "pooling_param { global_pooling: true } }"
        'layer { name: "move" type: "Scale" bottom: "r" top: "moved" }'
        'layer { name: "mask" type: "Convolution" bottom: "i" top: "mask" '
        "convolution_param { num_output: 1 kernel_size: 1 } }"
        'layer { name: "rx" type: "ReLU" bottom: "x0" top: "x" }'
        'layer { name: "rz" type: "ReLU" bottom: "z0" top: "z" }'
    )
    for number, (type_, bottoms, settings) in enumerate(LAYERS):
        text += f'layer {{ name: "op{number}" type: "{type_}" top: "y{number}" {settings} '
        text += "".join(f'bottom: "{each}" ' for each in bottoms.split()) + "}"
        text += (
            f'layer {{ name: "sum{number}" type: "Reduction" bottom: "y{number}" top: "s{number}" '
        )
        text += "loss_weight: 1 }"
    text += (
        'layer { name: "w" type: "InnerProduct" bottom: "y0" top: "w" '
        "inner_product_param { num_output: 4 } }"
        'layer { name: "loss" type: "SoftmaxWithLossOHEM" bottom: "w" bottom: "l" top: "t" '
        'top: "p" top: "each" loss_weight: 1 loss_weight: 0 loss_weight: 0 }'
        'layer { name: "focal" type: "FocalLoss" bottom: "w" bottom: "l" top: "f" '
        "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 7 } }"
        'layer { name: "region" type: "RegionLoss" bottom: "x" bottom: "t5" top: "region" '
        "region_loss_param { num: 1 num_class: 3 biases: 1 biases: 2 } }"
        'layer { name: "yolo" type: "Yolov3" bottom: "z" bottom: "t5" top: "yolo" '
        "yolov3_param { num: 1 num_class: 3 mask: 0 biases: 10 biases: 20 } }"
        'layer { name: "boxes" type: "Yolov3DetectionOutput" bottom: "z" top: "boxes" '
        "yolov3_detection_output_param { num_box: 1 num_classes: 3 mask: 0 biases: 10 biases: 20 "
        "anchors_scale: 8 mask_group_num: 1 } }"
        'layer { name: "hard" type: "BoxAnnotatorOHEM" bottom: "r" bottom: "each" bottom: "l" '
        'bottom: "w" top: "hl" top: "hw" box_annotator_ohem_param { roi_per_img: 3 } }'
    )
    backend = with_libraries(Cuda(precision=precision, graphs=False))
    net = build(text, backend, phase="TRAIN")
    net.forward()
    net.backward()
