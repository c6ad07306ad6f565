"""Tests of VideoData: which frames of a video it brings, TSN's crops, and bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from osucaffe.forks.video.video_frames import Crops
from tests.layers.reading.test_data_files import batches, build, refuse


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Two videos of 12 and 3 frames of 8 x 10 pixels: blue tells the number of the frame, green
    the column, red the row; and their flow, x and y, of that number and of 100 more."""
    rows, columns = np.indices((8, 10))
    lines = []
    for name, frames in (("long", 12), ("short", 3)):
        folder = tmp_path / f"a {name} video"
        folder.mkdir()
        for number in range(1, frames + 1):
            picture = np.stack([10 * rows, 10 * columns, np.full((8, 10), number)], axis=-1)
            Image.fromarray(picture.astype(np.uint8)).save(folder / f"img_{number:05}.png")
            for axis, shift in (("x", 0), ("y", 100)):
                flow = np.full((8, 10), number + shift, np.uint8)
                Image.fromarray(flow).save(folder / f"flow_{axis}_{number:05}.png")
        lines.append(f"{folder} {frames} {len(lines) + 5}")
    (tmp_path / "list.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def layer(folder: Path, settings: str = "", transform: str = "") -> str:
    return f"""type: "VideoData" top: "data" top: "label" transform_param {{ {transform} }}
        video_data_param {{ source: "{folder}/list.txt" batch_size: 2 {settings} }}"""


RGB = 'modality: RGB name_pattern: "img_%05d.png" '
FLOW = 'name_pattern: "flow_%c_%05d.png" '


def test_the_middles_of_segments(videos: Path) -> None:
    net = build(layer(videos, RGB + "num_segments: 3 new_length: 2"), phase="TEST")
    assert net.blobs["data"].shape == (2, 18, 8, 10)
    assert net.layers[0].records == 2
    data, label = batches(net, 2, "data", "label")
    assert label.tolist() == [5, 6, 5, 6]
    # Segments of 4 frames: (4 - 2 + 1) // 2 = 1 behind the first of each; of 1 frame: from frame 1.
    assert data[0, ::3, 0, 0].tolist() == [2, 3, 6, 7, 10, 11]
    assert data[1, ::3, 0, 0].tolist() == [1, 2, 1, 2, 1, 2]


@pytest.mark.usefixtures("readers_are")
def test_random_places_in_training(videos: Path) -> None:
    net = build(layer(videos, FLOW + "num_segments: 2 new_length: 3 shuffle: true"))
    assert net.blobs["data"].shape == (2, 12, 8, 10)
    data, label = batches(net, 12, "data", "label")
    assert sorted(label.tolist()) == [5] * 12 + [6] * 12
    found = data[label == 5][:, :, 0, 0]
    np.testing.assert_array_equal(found[:, 1::2], found[:, ::2] + 100)
    first, second = found[:, 0], found[:, 6]
    assert set(first) == {1, 2, 3, 4}
    assert set(second) == {7, 8, 9, 10}
    np.testing.assert_array_equal(found[:, 4], first + 2)
    assert (data[label == 6][:, ::2, 0, 0] == [1, 2, 3, 1, 2, 3]).all()


def test_mirrored_flow_is_inverted(videos: Path) -> None:
    net = build(layer(videos, FLOW + "new_length: 1", "mirror: true is_flow: true"))
    data, label = batches(net, 12, "data", "label")
    horizontal = data[label == 6][:, 0, 0, 0]
    assert (horizontal < 4).any()
    assert (horizontal > 251).any()
    assert (data[:, 1] < 113).all()


def test_crops_of_several_scales(videos: Path) -> None:
    transform = "crop_size: 4 mirror: true multi_scale: true scale_ratios: [1, 0.75, 0.5] "
    net = build(layer(videos, RGB, transform + "fix_crop: true more_fix_crop: true max_distort: 1"))
    assert net.blobs["data"].shape == (2, 3, 4, 4)
    data, _ = batches(net, 40, "data", "label")
    heights = data[:, 2, -1, 0] - data[:, 2, 0, 0]
    assert set(heights.tolist()) == {60, 30}  # of 8 rows, or 4: 6 are near 4
    net = build(layer(videos, RGB, transform), phase="TEST")
    data, _ = batches(net, 1, "data", "label")
    np.testing.assert_array_equal(np.minimum(data[0, 1, 0], data[0, 1, 0, ::-1])[:2], [30, 40])
    assert data[0, 2, 0, 0] == 20


def test_what_crops_are_drawn() -> None:
    crops = Crops(224, (1.0, 0.875, 0.75, 0.66), 1, fixed=True, more=True)
    sizes = crops.sizes((256, 340))
    assert len(sizes) == 10
    assert (256, 256) in sizes
    assert (224, 192) in sizes
    assert (256, 192) not in sizes
    assert Crops(224, (0.87,)).sizes((256, 340)) == [(224, 224)]  # 222, which is near
    corners = crops.corners((32, 116))
    assert len(corners) == len(set(corners)) == 13
    assert (32, 116) in corners
    assert (16, 58) in corners
    assert Crops(224).sizes((256, 340)) == [(224, 224)]


def test_a_first_video_without_frames_may_be_skipped(videos: Path) -> None:
    (videos / "a long video" / "img_00001.png").unlink()
    text = layer(videos, RGB + "new_length: 3")
    refuse(text, "img_00001.png: No such file")
    net = build(text, phase="TEST", skip_bad=True)
    assert len(batches(net, 1, "data")[0]) == 2


def test_bad_input_is_named(videos: Path) -> None:
    refuse(layer(videos, "new_length: 0"), "video_data_param.new_length: must be at least 1")
    refuse(layer(videos, "modality: VIDEO"), "VIDEO is not supported")
    refuse(layer(videos, 'modality: RGB name_pattern: "img.png"'), "names no frames")
    refuse(layer(videos, RGB, "multi_scale: true"), "transform_param.crop_size: is missing")
    refuse(layer(videos, RGB, "crop_size: 9"), "a crop of 9x9 does not fit the frames")
    refuse(layer(videos, "use_image: true"), "use_image: is not supported yet (a field of C3D")
    refuse(layer(videos), "flow_x_0001.jpg")
    (videos / "list.txt").write_text("folder 3\n")
    refuse(layer(videos), 'line 1: "folder 3" is not the folder')
