"""nvImageCodec's C interface: its structures, and the library itself, which decodes on CPUs too."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from osucaffe.backends.cuda.libraries import nvimagecodec_api
from osucaffe.backends.cuda.libraries.nvimagecodec_api import (
    CPU_ONLY,
    NO_DEVICE,
    Codec,
    Decoding,
    Source,
    Struct,
    Target,
)

from .fake_codec import CODEC, jpeg

SIZES = {
    "Properties": 32, "InstanceCreateInfo": 64, "DecodeParams": 32, "Orientation": 40,
    "ImagePlaneInfo": 56, "ImageInfo": 2160, "BackendParams": 32, "Backend": 64,
    "ExecutionParams": 80, "ExtensionDesc": 64,
}  # fmt: skip
"""Bytes, as C compilers for 64-bit Linux lay out nvimgcodec.h 0.9."""


def test_structures_are_as_large_as_those_of_c() -> None:
    assert {kind.__name__ for kind in Struct.__subclasses__()} == set(SIZES)
    for name, size in SIZES.items():
        kind = getattr(nvimagecodec_api, name)
        made = kind()
        assert (made.struct_type, made.struct_size, ctypes.sizeof(made)) == (kind.kind, size, size)


def package() -> Path:
    try:
        found = importlib.util.find_spec(CODEC)
    except ImportError:
        found = None
    if found is None or not found.submodule_search_locations:
        pytest.skip("nvImageCodec is not installed")
    return Path(found.submodule_search_locations[0])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_structures_are_those_of_the_header(tmp_path: Path) -> None:
    include = package() / "include"
    (tmp_path / "cuda_runtime_api.h").write_text("typedef void* cudaStream_t;")
    lines = []
    for kind in Struct.__subclasses__():
        theirs = f"nvimgcodec{kind.__name__}_t"
        lines.append(f'printf("%zu ", sizeof({theirs}));')
        own = [name for name, _ in kind._fields_ if name != "backend"]
        lines += [f'printf("%zu ", offsetof({theirs}, {name}));' for name in own]
    source = tmp_path / "sizes.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <nvimgcodec.h>\n"
        f"int main() {{ {' '.join(lines)} }}"
    )
    command = ["gcc", f"-I{tmp_path}", f"-I{include}", str(source), "-o", str(tmp_path / "sizes")]
    subprocess.run(command, check=True)
    printed = subprocess.run([tmp_path / "sizes"], check=True, capture_output=True, text=True)
    mine = []
    for kind in Struct.__subclasses__():
        mine.append(ctypes.sizeof(kind))
        mine += [getattr(kind, name).offset for name, _ in kind._fields_ if name != "backend"]
    assert [int(each) for each in printed.stdout.split()] == mine


def test_the_library_decodes_on_the_cpu_and_survives_what_is_none() -> None:
    package()
    decoding = Decoding(
        Codec("jpeg_turbo"), NO_DEVICE, [CPU_ONLY], threads=1, options=":fancy_upsampling=1"
    )
    height, width, pad = 40, 48, 4
    good = [jpeg(height, width, seed) for seed in range(3)]
    bad = [b"", b"nonsense", b"\xff\xd8\xff", good[0][:300], jpeg(height, width - 1)]
    random = np.random.default_rng(0)
    for channels, colours in ((3, "BGR"), (1, "GRAY")):
        row = (width + pad) * channels
        for count in (3, 8, 1, 5):
            order = random.permutation(8)[:count]
            sources = [[*good, *bad][number] for number in order]
            out = np.full((count, height, width + pad, channels), 7, np.uint8)
            targets = [Target(each.ctypes.data, (height, width), row) for each in out]
            memory = [np.frombuffer(each or b"0", np.uint8) for each in sources]
            given = [
                Source(each.ctypes.data, len(source))
                for each, source in zip(memory, sources, strict=True)
            ]
            done = decoding.decode(given, targets, channels, 0)
            assert (out[:, :, width:] == 7).all()
            for number, source, ok, image in zip(order, sources, done, out, strict=True):
                if number < len(good):
                    assert ok
                    wanted = simplejpeg.decode_jpeg(source, colorspace=colours)
                    assert np.abs(image[:, :width].astype(int) - wanted).max() <= 1
                elif source is not bad[3]:  # it may give what there is of one cut short
                    assert not ok
