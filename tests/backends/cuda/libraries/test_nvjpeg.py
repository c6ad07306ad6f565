"""nvJPEG's C interface: its numbers, and where it is found."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

from osucaffe.backends.cuda.libraries import nvjpeg
from osucaffe.backends.cuda.libraries.wheel import open_library


def header() -> str:
    try:
        found = importlib.util.find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        found = None
    for folder in (found and found.submodule_search_locations) or ():
        if (path := Path(folder) / "include" / "nvjpeg.h").exists():
            return path.read_text()
    pytest.skip("nvJPEG is not installed")


def test_numbers_are_those_of_the_header() -> None:
    text = header()
    for name, number in {
        "NVJPEG_BACKEND_GPU_HYBRID": nvjpeg.GPU_HYBRID,
        "NVJPEG_BACKEND_HARDWARE": nvjpeg.HARDWARE,
        "NVJPEG_OUTPUT_Y": nvjpeg.FORMATS[1],
        "NVJPEG_OUTPUT_BGRI": nvjpeg.FORMATS[3],
        "NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION": nvjpeg.SMOOTH,
    }.items():
        [found] = re.findall(rf"\b{name}\s*=?\s*(?:\()?(\d+(?:\s*<<\s*\d+)?)", text)
        assert eval(found) == number, name
    planes = re.search(r"#define NVJPEG_MAX_COMPONENT (\d+)", text)
    assert planes
    assert nvjpeg.IMAGE.itemsize == int(planes[1]) * (8 + ctypes.sizeof(ctypes.c_size_t))
    for name in ("CreateEx", "JpegStateCreate", "DecodeBatchedInitialize", "DecodeBatched"):
        assert re.search(rf"\bnvjpeg{name}\(", text), name


def test_the_wheel_is_opened() -> None:
    header()
    library = open_library("nvidia.cu13", "libnvjpeg.so.13")
    major = ctypes.c_int()
    assert library.nvjpegGetProperty(0, ctypes.byref(major)) == 0
    assert major.value == 13


def test_what_is_nowhere() -> None:
    with pytest.raises(OSError, match=r"libnvjpeg\.so\.99"):
        open_library("nvidia.no_such_package", "libnvjpeg.so.99")
