"""What MatWrite writes, read as MATLAB's format 5 says."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.net import Net
from tests.layers.nets import build, inputs

random = np.random.default_rng(5)


def parts(content: bytes) -> list[tuple[int, bytes]]:
    """The elements of a matrix."""
    found = []
    while content:
        kind, size = struct.unpack("<II", content[:8])
        found.append((kind, content[8 : 8 + size]))
        content = content[8 + -(-size // 8) * 8 :]
    return found


def read(path: Path) -> np.ndarray:
    """The array `data` of a file, in MATLAB's order of axes."""
    content = path.read_bytes()
    assert content[:19] == b"MATLAB 5.0 MAT-file"
    assert content[124:128] == b"\x00\x01IM"
    kind, size = struct.unpack("<II", content[128:136])
    assert (kind, size) == (14, len(content) - 136)
    (flags, extents, name, values) = parts(content[136:])
    assert flags == (6, struct.pack("<II", 7, 0))
    assert (extents[0], name, values[0]) == (5, (1, b"data"), 7)
    shape = struct.unpack("<4i", extents[1])
    return np.frombuffer(values[1], "<f4").reshape(shape, order="F")


def writer(folder: Path, text: str, **shapes: tuple[int, ...]) -> Net:
    bottoms = " ".join(f'bottom: "{name}"' for name in shapes)
    param = f'mat_write_param {{ prefix: "{folder}/p_" {text} }}'
    return build(
        inputs(shapes) + f'layer {{ name: "op" type: "MatWrite" {bottoms} {param} }}',
        inspectable=True,
    )


def test_blobs_are_written_with_their_axes_reversed(tmp_path: Path) -> None:
    net = writer(tmp_path, "period: 2", x=(2, 3, 4, 5), y=(7, 2))
    net.write("x", x := random.standard_normal((2, 3, 4, 5)).astype(np.float32))
    net.write("y", y := random.standard_normal((7, 2)).astype(np.float32))
    for _ in range(3):
        net.forward()
    names = [f"p_iter_{number}_blob_{blob}.mat" for number in (0, 2) for blob in (0, 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    np.testing.assert_array_equal(read(tmp_path / names[0]), x.T)
    np.testing.assert_array_equal(read(tmp_path / names[3]), y.T[None, None])


def test_names_come_from_a_list(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("2007_1.jpg 5\n\n2007_2.jpg\n")
    net = writer(tmp_path, f'source: "{tmp_path}/list" strip: 4', x=(1, 2, 3, 3))
    for size in 3, 4:  # the next image of another size is the next of the list
        net.reshape({"x": (1, 2, size, size)})
        net.forward()
        assert read(tmp_path / f"p_2007_{size - 2}_blob_0.mat").shape == (size, size, 2, 1)
    with pytest.raises(UserError, match="has 2 names, and this is one pass more"):
        net.forward()


@pytest.mark.parametrize(
    ("text", "shape", "told"),
    [
        ("period: 0", (1,), "mat_write_param.period: must be at least 1"),
        ("", (1, 2, 3, 4, 5), r"bottom\[0\]: .* at most 4 axes can be written"),
        ('source: "LIST" strip: 3', (1,), "mat_write_param.strip: 3 leaves nothing of abc"),
        ('source: "no"', (1,), "mat_write_param.source: .*no: No such file"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, text: str, shape: tuple[int, ...], told: str
) -> None:
    (tmp_path / "list").write_text("abc\n")
    with pytest.raises(UserError, match=told):
        writer(tmp_path, text.replace("LIST", f"{tmp_path}/list"), x=shape)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    net = writer(tmp_path / "no", "", x=(1,))
    with pytest.raises(UserError, match=r'"op" \(MatWrite\), mat_write_param.prefix: .*No such'):
        net.forward()
