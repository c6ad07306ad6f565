"""MS-CNN's and Cascade R-CNN's data layers: images of a list, cut about objects, and their maps."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.forks.cascade.fields import Rules, field_maps
from osucaffe.forks.cascade.object_crops import Picture, Placed, choose_centre, place, zoomed
from osucaffe.forks.cascade.object_lists import order_of, read_object_list
from tests.layers.nets import build

from .test_field_boxes import overlap, pixels

random = np.random.default_rng(41)
BOX = (20, 10, 50, 34)


def make_list(folder: Path, extents: list[tuple[int, int]], *, difficult: bool = True) -> Path:
    """Images that are black but for a white object."""
    lines = []
    for number, (height, width) in enumerate(extents):
        image = np.zeros((height, width, 3), np.uint8)
        image[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 255
        Image.fromarray(image).save(folder / f"{number}.png")
        lines += [f"# {number}", f"/{number}.png", "3", str(height), str(width), "1"]
        lines += [f"{number % 2 + 1} 0 {'1 ' if difficult else ''}{' '.join(map(str, BOX))}", "0"]
    path = folder / "list.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def feed(type_: str, text: str, tops: int, phase: str = "TRAIN"):
    names = "".join(f'top: "t{i}" ' for i in range(tops))
    return build(f'layer {{ name: "op" type: "{type_}" {names} {text} }}', Cpu(), phase=phase)


def naive(placed: Placed, extents, field, rules: Rules) -> np.ndarray:
    """The map of a field, cell by cell, before objects are picked up."""
    width, height, stride = field
    edge, grow = (0, 0) if rules.edges else (0, 1)
    rows, columns = extents[0] // stride, extents[1] // stride
    out = np.zeros((6, rows, columns))
    x0, y0, wide, high = (round(each / stride) for each in placed.inside)
    for y, x in np.ndindex(rows, columns):
        if not (x0 <= x < x0 + wide and y0 <= y < y0 + high):
            out[5, y, x] = 1
            continue
        left, up = (x + 0.5) * stride - width / 2, (y + 0.5) * stride - height / 2
        cell = (left, up, width + grow, height + grow)
        if rules.margin is not None:
            a, b, c, d = placed.inside
            far = (rules.margin * width / 2, rules.margin * height / 2)
            if (left < a - far[0] or left + width >= a + c + far[0] or up < b - far[1]
                    or up + height >= b + d + far[1]):  # fmt: skip
                out[5, y, x] = 1
                continue
        boxes = [(*each[3:5], *(each[5:] - each[3:5] + grow)) for each in placed.picture.objects]
        regions = [(*each[:2], *(each[2:] - each[:2] + grow)) for each in placed.picture.regions]
        aside = sum(overlap(cell, region, "IOFU") for region in regions) >= rules.of_no_interest
        shares = [overlap(cell, box, "IOU") for box in boxes]
        best = int(np.argmax(shares))
        if rules.edges and aside:
            out[5, y, x] = 1
        elif shares[best] > rules.foreground:
            object_ = placed.picture.objects[best]
            middle = (object_[3:5] + object_[5:]) / 2
            label = 0 if object_[1] else object_[0]
            out[:, y, x] = [label, *middle, *boxes[best][2:], shares[best]]
        else:
            out[5, y, x] = 1 if aside else shares[best]
    assert edge == 0
    return out


@pytest.mark.parametrize("edges", [True, False])
@pytest.mark.parametrize("margin", [None, 0.5])
def test_maps_of_fields(edges: bool, margin: float | None) -> None:
    objects = np.array([
        [2, 0, 0, 20, 12, 51, 47], [1, 1, 0, 60, 60, 90, 88], [3, 0, 0, 66, 8, 71, 13],
    ], float)  # fmt: skip
    picture = Picture(np.zeros((96, 96, 3), np.uint8), objects, np.array([[0.0, 64, 40, 96]]))
    placed = Placed(picture, (16, 0, 80, 96), picture.image)
    fields = [(32, 32, 8), (24, 40, 16)]
    rules = Rules(fields, edges=edges, foreground=0.4, pick_up=0.02, margin=margin)
    found = field_maps(placed, (96, 96), rules)
    assert found[0][0].any()
    grow = 0 if edges else 1
    for maps, field in zip(found, fields, strict=True):
        wanted = naive(placed, (96, 96), field, rules)
        if maps is found[1]:  # the third object is picked up, where its middle is
            wanted[:5, 0, 4] = [3, 68.5, 10.5, 5 + grow, 5 + grow]
            if not edges:
                wanted[5, 0, 4] = 36 / (25 * 41)
        np.testing.assert_allclose(maps, wanted, atol=1e-9)


def test_an_object_stays_on_its_pixels() -> None:
    """However the image is mirrored, resized, zoomed and cut."""
    image = np.zeros((60, 80, 3), np.uint8)
    image[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 255
    first = Picture(image, np.array([[1, 0, 0, *BOX]], float), np.array([[0, 0, 5, 5.0]]))
    for extents in ((40, 40), (200, 100), (60, 80)):
        for scale in ((1, 1), (0.7, 0.9), (2.5, 2.0)):
            generator = np.random.default_rng(5)
            picture = first.mirrored().resized(90, 100)
            _, centre = choose_centre(picture, extents, generator)
            placed = place(*zoomed(picture, centre, np.array(scale)), extents, generator)
            x, y, width, height = placed.inside
            canvas = np.full((*extents, 3), 128, np.uint8)
            canvas[y : y + height, x : x + width] = placed.part
            x1, y1, x2, y2 = placed.picture.objects[0, 3:]
            ys, xs = np.mgrid[: extents[0], : extents[1]] + 0.5
            within = (xs > x1 + 4) & (xs < x2 - 4) & (ys > y1 + 4) & (ys < y2 - 4)
            beyond = (xs < x1 - 2) | (xs > x2 + 2) | (ys < y1 - 2) | (ys > y2 + 2)
            assert within.any()
            assert set(np.unique(canvas[within])) <= {128, 255}
            assert (canvas[within] == 255).any()
            assert not (canvas[beyond] == 255).any()


def test_whole_images(tmp_path: Path) -> None:
    path = make_list(tmp_path, [(60, 90), (90, 60)])
    text = (
        f'eval_data_param {{ source: "{path}" root_folder: "{tmp_path}" batch_size: 1 '
        "short_size: 64 long_size: 80 } transform_param { mean_value: 100 scale: 0.5 }"
    )
    net = feed("EvalData", text, 3, "TEST")
    for shape in ((64, 96), (96, 64), (64, 96)):
        net.forward()
        image = net.read("t0")
        assert image.shape == (1, 3, *shape)  # 80 is a multiple of 32 no more
        np.testing.assert_array_equal(net.read("t2").ravel(), shape)
        rows = net.read("t1")[:, :, 0, 0]
        label = 1 if shape[0] == 64 else 2
        old = (60, 90) if shape[0] == 64 else (90, 60)
        box = np.array(BOX) * np.tile([shape[1] / old[1], shape[0] / old[0]], 2)
        np.testing.assert_allclose(rows, [[0, *box, label, 0, 1]], rtol=1e-6)
        x, y = (int(each) for each in (box[:2] + box[2:]) / 2)
        assert (image[0, :, y, x] == 77.5).all()
        assert image[0, 0, 0, 0] == -50


@pytest.mark.parametrize(
    "fixed", ["crop_width: 64 crop_height: 48", "short_size: 64 long_size: 96"]
)
def test_images_and_maps_of_cascade_r_cnn(fixed: str, tmp_path: Path) -> None:
    path = make_list(tmp_path, [(60, 90), (90, 60)])
    text = (
        f'detection_data_param {{ source: "{path}" root_folder: "{tmp_path}" batch_size: 1 {fixed} '
        "stride: [8, 16] field_w: [32, 16] field_h: [24, 16] output_gt_boxes: true "
        "low_scale_ratio: 0.8 high_scale_ratio: 1.25 } transform_param { mirror: true }"
    )
    net, shapes = feed("DetectionData", text, 4), set()
    for _ in range(4):
        net.forward()
        image, rows = net.read("t0"), net.read("t3")[0, :, 0, 0]
        shapes.add(image.shape[2:])
        for name, stride in (("t1", 8), ("t2", 16)):
            assert net.read(name).shape == (1, 6, *(side // stride for side in image.shape[2:]))
        x, y, wide, high = pixels(rows[1:5])
        labels = net.read("t1")[0]
        cells = labels[:, labels[0] > 0]
        assert cells.shape[1] >= 1
        wanted = [rows[5], x + (wide - 1) / 2, y + (high - 1) / 2, wide, high]
        np.testing.assert_allclose(cells[:5], np.tile(wanted, (cells.shape[1], 1)).T, rtol=1e-5)
    assert shapes == ({(48, 64)} if "crop" in fixed else {(64, 96), (96, 64)})


def test_images_and_maps_of_ms_cnn(tmp_path: Path) -> None:
    """The same from one position on, in each of two runs."""
    path = make_list(tmp_path, [(60, 90)] * 3, difficult=False)
    text = (
        f'image_gt_data_param {{ source: "{path}" root_folder: "{tmp_path}" batch_size: 2 '
        "crop_width: 64 crop_height: 48 resize_width: 120 resize_height: 80 downsample_rate: 8 "
        "field_w: 40 field_h: 32 do_multiple_scale: true min_scale: 20 max_scale: 60 "
        "min_whaspect: 0.8 max_whaspect: 1.2 shuffle: true output_gt_boxes: true } "
        "transform_param { mirror: true mean_value: [104, 117, 123] }"
    )
    runs = []
    for start in (0, 4):
        net = feed("ImageGtData", text, 3)
        net.layers[0].position = start
        for _ in range(3 - start // 2):
            net.forward()
        assert net.layers[0].position == 6
        runs.append([net.read(f"t{i}") for i in range(3)])
    np.testing.assert_equal(*runs)
    image, maps, rows = runs[0]
    assert (image.shape, maps.shape, rows.shape) == ((2, 3, 48, 64), (2, 6, 6, 8), (2, 7, 1, 1))
    assert (maps[:, 0].reshape(2, -1).max(axis=1) > 0).all()
    np.testing.assert_array_equal(rows[:, 0, 0, 0], [0, 1])


def test_orders(tmp_path: Path) -> None:
    images = read_object_list(
        str(make_list(tmp_path, [(60, 90), (90, 60)] * 5)), str(tmp_path), difficult=True
    )
    assert order_of(images, "", 1, 0, 2).tolist() == list(range(10))
    for kind, wanted in (
        ("random_aspect", [5, 5]),
        ("random_mix_aspect", [2] * 5),
    ):
        order = order_of(images, kind, 1, 0, 2)
        assert sorted(order) == list(range(10))
        tall = order % 2
        runs = [len(each) for each in np.split(tall, np.flatnonzero(np.diff(tall)) + 1)]
        assert runs[: len(wanted) - 1] == wanted[:-1]
    assert math.isclose(len(set(order_of(images, "random", 1, 0, 2).tolist())), 10)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("a.png 3", 'image 0: expected "#" of an image, found "a.png"'),
        ("# 0 a.png 3 60 90 1 1 0 0 1 2", "image 0: the file ends in the middle of it"),
        ("# 0 a.png 3 60 90 1 0 0 0 1 2 3 4 0", "image 0: an object's label must be above 0"),
        ("# 0 a.png 3 60 90 0 0", "cannot read image .*a.png: No such file"),
    ],
)
def test_messages(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        feed("EvalData", f'eval_data_param {{ source: "{path}" batch_size: 1 }}', 2)
