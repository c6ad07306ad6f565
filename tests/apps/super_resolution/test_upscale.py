"""`osucaffe upscale`: sizes, tiles, transparency, grey, the table of --score, bad input."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from PIL import Image

from osucaffe.apps.super_resolution import upscale_files as files
from osucaffe.apps.super_resolution.quality import psnr, ssim
from osucaffe.apps.super_resolution.tiling import Enlarger, parts, reach
from osucaffe.backends.cpu import Cpu
from osucaffe.data.pictures.bicubic import enlarge, shrink
from osucaffe.data.pictures.preprocessing import Preprocessing
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2, parse_text

MEAN = (100.0, 110.0, 120.0)
DEPLOY = """\
name: "enlarges"
layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
layer { name: "wide" type: "Convolution" bottom: "data" top: "wide"
  convolution_param { num_output: 12 pad: KPAD kernel_size: KERNEL
    weight_filler { type: "gaussian" std: 0.05 } } }
layer { name: "shuffle" type: "PixelShuffle" bottom: "wide" top: "shuffle"
  pixel_shuffle_param { upscale_factor: 2 } }
layer { name: "last" type: "Convolution" bottom: "shuffle" top: "last"
  convolution_param { num_output: 3 pad: 2 kernel_size: 5
    weight_filler { type: "gaussian" std: 0.1 } } }
"""
"""Two convolutions, so that a pixel sees others at both resolutions."""


def text(kernel=7):
    return DEPLOY.replace("KPAD", str(kernel // 2)).replace("KERNEL", str(kernel))


def image(height, width, seed=0):
    """Colours (3, height, width) with slopes, edges and noise."""
    draw = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    base = 110 + 50 * np.sin(rows / 4) + 40 * np.cos(columns / 6) + 30 * (rows > columns)
    values = base + draw.normal(0, 5, (3, height, width)) + np.array([[[-9]], [[0]], [[9]]])
    return values.clip(0, 255).astype(np.uint8)


def random_net(**settings):
    return Net(
        parse_text(text(), caffe_pb2.NetParameter), backend=Cpu(threads=1), phase="TEST", seed=3,
        inference=True, **settings,
    )  # fmt: skip


def repeating():
    """Weights with which the net repeats each pixel, and the mean of training."""
    weights = caffe_pb2.NetParameter()
    data = weights.layer.add(name="data", type="PatchData", top=["data", "label"])
    data.transform_param.mean_value.extend(MEAN)
    wide = np.zeros((12, 3, 7, 7), np.float32)
    wide[np.arange(12), np.arange(12) // 4, 3, 3] = 1
    last = np.zeros((3, 3, 5, 5), np.float32)
    last[range(3), range(3), 2, 2] = 1
    for name, values in (("wide", wide), ("last", last)):
        layer = weights.layer.add(name=name, type="Convolution")
        for each in (values, np.zeros(len(values), np.float32)):
            blob = layer.blobs.add()
            blob.shape.dim.extend(each.shape)
            blob.data.extend(each.ravel().tolist())
    return weights.SerializeToString()


@pytest.fixture
def upscale(cli):
    cli.write("deploy.prototxt", text())
    (cli.folder / "w.caffemodel").write_bytes(repeating())
    common = ["--model", "deploy.prototxt", "--weights", "w.caffemodel"]
    return lambda *arguments: cli("upscale", *arguments, *common)


def save(path, planes, mode, **options):
    bands = [Image.fromarray(np.ascontiguousarray(plane)) for plane in planes]
    Image.merge(mode, bands).save(path, **options)


def planes_of(path, mode):
    with Image.open(path) as opened:
        assert opened.mode == mode
        values = np.asarray(opened)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def repeated(planes):
    return planes.repeat(2, axis=-2).repeat(2, axis=-1)


@pytest.mark.parametrize("extent", [1, 7, 16, 17, 33, 100])
@pytest.mark.parametrize("tile", [1, 8, 16, 50])
def test_parts_make_up_the_row(extent, tile):
    found = list(parts(extent, tile, 5))
    assert len({part.stop - part.start for part in found}) == 1
    assert [part.keep for part in found] == [0, *(part.end for part in found[:-1])]
    assert found[-1].end == extent
    for part in found:
        assert 0 <= part.start <= part.keep < part.end <= part.stop <= extent
        assert part.start == 0 or part.keep - part.start >= 5
        assert part.stop == extent or part.stop - part.end >= 5


def test_tiles_give_what_the_whole_gives():
    entered = Preprocessing(mean_values=MEAN)
    picture = image(61, 83)
    whole = Enlarger(random_net(), entered).enlarge(picture)
    assert whole.std() > 10
    for tile in (9, 20, 40):
        tiled = Enlarger(random_net(), entered, tile).enlarge(picture)
        difference = np.abs(tiled.astype(int) - whole)
        assert difference.max() <= 1  # where a value lies between two bytes
        assert difference.mean() < 1e-3
    net = random_net()
    assert reach(net.param) == 4  # 3 + 2 / 2
    narrow = Enlarger(net, entered, 20)
    narrow._margin = 2
    assert np.abs(narrow.enlarge(picture).astype(int) - whole).max() > 1


def test_scale_of_training_counts():
    picture = image(12, 14)
    made = Enlarger(random_net(), Preprocessing(scale=0.01, mean_values=(90.0,))).enlarge(picture)
    net = random_net()
    net.reshape({"data": (1, 3, 12, 14)})
    net.write("data", (picture[None].astype(np.float32) - 90) * np.float32(0.01))
    net.forward()
    expected = (net.read("last")[0] / np.float32(0.01) + 90).clip(0, 255)
    np.testing.assert_array_equal(made, np.floor(expected + 0.5))


def test_formats_and_sizes(cli, upscale):
    folder = cli.folder / "in"
    (folder / "deeper").mkdir(parents=True)
    colours, cover = image(21, 30), image(21, 30, 1)[0]
    save(folder / "colour.png", colours[::-1], "RGB", icc_profile=b"a profile")
    save(folder / "clear.webp", [*colours[::-1], cover], "RGBA", lossless=True)
    save(folder / "deeper/grey.png", colours[:1], "L")
    save(folder / "both.png", [colours[0], cover], "LA")
    save(folder / "photo.jpg", colours[::-1], "RGB", quality=95)
    save(folder / "old.bmp", colours[::-1], "RGB")
    done = upscale("in", "out", "--tile", "10")
    assert (done.code, done.out.count("\n")) == (0, 6), done.err
    out = cli.folder / "out"
    np.testing.assert_array_equal(planes_of(out / "colour.png", "RGB"), repeated(colours)[::-1])
    np.testing.assert_array_equal(planes_of(out / "old.png", "RGB"), repeated(colours)[::-1])
    np.testing.assert_array_equal(planes_of(out / "deeper/grey.png", "L"), repeated(colours[:1]))
    both = planes_of(out / "both.png", "LA")
    np.testing.assert_array_equal(both[0], repeated(colours[0]))
    np.testing.assert_array_equal(both[1], enlarge(cover, 2))
    clear = planes_of(out / "clear.webp", "RGBA")
    np.testing.assert_array_equal(clear[3], enlarge(cover, 2))
    assert planes_of(out / "photo.jpg", "RGB").shape == (3, 42, 60)
    with Image.open(out / "colour.png") as opened:
        assert opened.info["icc_profile"] == b"a profile"


def test_one_image_upright(cli, upscale):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    colours = image(20, 30)
    save(cli.folder / "lies.png", colours[::-1], "RGB", exif=exif)
    assert upscale("lies.png", "stands.png").code == 0
    made = planes_of(cli.folder / "stands.png", "RGB")
    np.testing.assert_array_equal(made, np.rot90(repeated(colours)[::-1], -1, (1, 2)))


def test_options_say_how_images_enter(cli, upscale):
    """The net repeats what enters: so the same image comes out, whatever the mean and the scale."""
    unknown = caffe_pb2.NetParameter.FromString(repeating())
    del unknown.layer[0]
    (cli.folder / "w.caffemodel").write_bytes(unknown.SerializeToString())
    colours = image(12, 22)
    save(cli.folder / "small.png", colours[::-1], "RGB")
    done = upscale("small.png", "out.png")
    assert done.code == 1
    assert "does not record how training preprocessed images: give --mean and" in done.err
    wide = unknown.layer[0].blobs[1]
    wide.data[:] = np.repeat(np.float32([0.1, 0, 0]), 4)  # channels in front of the shuffle
    (cli.folder / "w.caffemodel").write_bytes(unknown.SerializeToString())
    for options, step in (
        (("--mean", "0"), 0.1),
        (("--mean", "10,20,30", "--input_scale", "0.01"), 10),
        (("--input_scale", "0.005"), 20),
    ):
        assert upscale("small.png", "out.png", *options).code == 0
        wanted = repeated(colours).astype(float)
        wanted[0] = (wanted[0] + step).clip(0, 255)
        found = planes_of(cli.folder / "out.png", "RGB")[::-1]
        assert np.abs(found - wanted).max() <= 0.5 + 1e-3
    done = upscale("small.png", "out.png", "--mean", "1,2")
    assert done.code == 2
    assert "must be one number or three" in done.err


def test_score(cli, upscale):
    colours = image(61, 70)
    save(cli.folder / "one.png", colours[::-1], "RGB")
    whole = colours[:, :60]
    small = shrink(whole, 2)
    expected = [
        each(made, whole, 2)
        for made in (enlarge(small, 2), repeated(small))
        for each in (psnr, ssim)
    ]
    done = upscale("one.png", "shown", "--score")
    assert done.code == 0, done.err
    numbers = [float(word) for word in done.out.splitlines()[2].split()[1:]]
    np.testing.assert_allclose(numbers, [*expected, expected[2] - expected[0]], atol=1e-3)
    assert "mean" in done.out.splitlines()[3]
    shown = planes_of(cli.folder / "shown/one.png", "RGB")
    assert shown.shape == (3, 60, 4 * 70 + 3 * 8)
    np.testing.assert_array_equal(shown[..., -70:], whole[::-1])
    found = json.loads(upscale("one.png", "shown", "--score", "--json").out)
    keys = ("bicubic_psnr", "bicubic_ssim", "psnr", "ssim")
    np.testing.assert_allclose([found["mean"][key] for key in keys], expected)


def test_bad_input(tmp_path):
    colours = image(20, 22)
    save(tmp_path / "a.png", colours, "RGB")
    save(tmp_path / "clear.png", [*colours, colours[0]], "RGBA")
    Image.fromarray(np.zeros((9, 9), np.float32)).save(tmp_path / "deep.tif")
    (tmp_path / "broken.png").write_bytes((tmp_path / "a.png").read_bytes()[:90])
    (tmp_path / "empty").mkdir()
    (tmp_path / "alike").mkdir()
    for name in ("x.bmp", "x.png"):
        save(tmp_path / "alike" / name, colours, "RGB")

    def find(given, output, *, pictures=False):
        files.find(str(tmp_path / given), str(tmp_path / output), pictures=pictures)

    for given, output, told in (
        ("none.png", "b.png", "none.png: no such image or folder"),
        ("empty", "out", "empty: no images in this folder"),
        ("a.png", "b.tif", "b.tif: name a file that ends with .jpg"),
        ("a.png", "a.png", "would replace the image itself"),
        ("alike", "a.png", "is a file, but there are several to write"),
        ("alike", "alike", "the images are there: name another folder"),
        ("alike", "out", "names differ in their endings only"),
    ):
        with pytest.raises(UserError, match=re.escape(told)):
            find(given, output)
    with pytest.raises(UserError, match=r"broken.png: "):
        files.read(tmp_path / "broken.png")
    with pytest.raises(UserError, match=r"deep.tif: .*more than 8 bits"):
        files.read(tmp_path / "deep.tif")
    with pytest.raises(UserError, match=r"b.jpg: JPEG has no transparency"):
        files.check(tmp_path / "b.jpg", files.read(tmp_path / "clear.png"))


def test_bad_options(cli, upscale):
    save(cli.folder / "small.png", image(12, 22), "RGB")
    for options, told in (
        (("--score",), "small.png: 22x12 is too small for --score"),
        (("--scale", "3"), "--scale 3: this net enlarges by 2"),
        (("--json",), "--json prints the figures of --score"),
    ):
        done = upscale("small.png", "out.png", *options)
        assert done.code == 1
        assert "Traceback" not in done.err
        assert told in done.err.splitlines()[-1]


def test_nets_that_do_not_enlarge():
    def make(text):
        return Net(parse_text(text, caffe_pb2.NetParameter), backend=Cpu(threads=1), phase="TEST")

    entered = Preprocessing()
    with pytest.raises(UserError, match="by an integer factor"):
        Enlarger(make(text().split('layer { name: "shuffle"')[0]), entered)
    pooled = text().replace('bottom: "data"', 'bottom: "pool"') + (
        'layer { name: "pool" type: "Pooling" bottom: "data" top: "pool"'
        " pooling_param { kernel_size: 3 pad: 1 } }"
    )
    layers = parse_text(pooled, caffe_pb2.NetParameter)
    with pytest.raises(UserError, match=r'layer "pool" .Pooling. may look at all .* --tile 0'):
        reach(layers)
    entered = type("Mean", (Preprocessing,), {"mean": lambda self: np.zeros((3, 8, 8))})()
    net = make(text())
    with pytest.raises(UserError, match="the mean of an image of any size is a colour"):
        Enlarger(net, entered)
