"""Tests of ImageData, HDF5Data, MemoryData and WindowData: what they bring, and bad input."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import simplejpeg

from osucaffe.data.config import DataConfig
from osucaffe.data.pictures.image import resize
from osucaffe.data.streams.windows import plan_cut
from osucaffe.errors import UserError
from osucaffe.proto import caffe_pb2
from tests.layers import nets


def build(text, phase="TRAIN", seed=1, **config):
    config = DataConfig(**config)
    return nets.build(f'layer {{ name: "d" {text} }}', phase=phase, seed=seed, data_config=config)


def batches(net, count, *names):
    taken = []
    for _ in range(count):
        net.forward()
        taken.append([net.read(name) for name in names])
    return [np.concatenate(each) for each in zip(*taken, strict=True)]


def refuse(text, message):
    with pytest.raises(UserError) as caught:
        build(text)
    assert str(caught.value).startswith('layer "d" (')
    assert message in str(caught.value)


# -- ImageData -----------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path):
    """Five JPEGs that differ, as decoded; "list.txt" names them with labels 0, 10, 20 ..."""
    generator = np.random.default_rng(0)
    decoded, lines = [], []
    for index in range(5):
        coarse = generator.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        name = f"a picture {index}.jpg"
        content = simplejpeg.encode_jpeg(resize(coarse, 24, 32), colorspace="BGR")
        (tmp_path / name).write_bytes(content)
        decoded.append(simplejpeg.decode_jpeg(content, colorspace="BGR"))
        lines.append(f"{name} {index * 10}")
    (tmp_path / "list.txt").write_text("\n".join(lines) + "\n\n")
    return decoded


def image_data(folder, settings="", transform=""):
    return f"""type: "ImageData" top: "data" top: "label" transform_param {{ {transform} }}
        image_data_param {{ source: "{folder}/list.txt" root_folder: "{folder}/" batch_size: 3
        {settings} }}"""


def test_image_data_follows_the_list_over_and_over(tmp_path, pictures):
    net = build(image_data(tmp_path, transform="mean_value: 100 scale: 0.5"))
    assert net.blobs["data"].shape == (3, 3, 24, 32)
    data, labels = batches(net, 4, "data", "label")
    order = np.arange(12) % 5
    assert labels.tolist() == (order * 10).tolist()
    wanted = np.array(pictures, np.float32).transpose(0, 3, 1, 2)
    assert np.allclose(data, (wanted[order] - 100) * 0.5)


def test_image_data_resizes_and_reads_gray(tmp_path, pictures):
    net = build(image_data(tmp_path, "new_height: 10 new_width: 12", "crop_size: 8"), "TEST")
    data, _ = batches(net, 1, "data", "label")
    wanted = resize(pictures[2], 10, 12)[1:9, 2:10].transpose(2, 0, 1)
    assert (data[2] == wanted).all()
    assert build(image_data(tmp_path, "is_color: false")).blobs["data"].shape == (3, 1, 24, 32)


def test_image_data_shuffles_anew_in_each_epoch_as_the_seed_says(tmp_path, pictures):
    text = image_data(tmp_path, "shuffle: true", "crop_size: 20 mirror: true")
    data, labels = batches(build(text), 10, "data", "label")
    epochs = labels.reshape(6, 5)
    assert (np.sort(epochs) == np.arange(5) * 10).all()
    assert len({tuple(each) for each in epochs.tolist()}) > 1
    assert (batches(build(text), 10, "data")[0] == data).all()
    assert (batches(build(text, seed=2), 10, "label")[0] != labels).any()
    later = build(text)
    later.layers[0].position = 9
    assert (batches(later, 2, "data")[0] == data[9:15]).all()
    parts = [build(text) for _ in range(2)]
    for rank, net in enumerate(parts):
        net.layers[0].split(rank, 2)
    shares = [batches(net, 5, "data")[0].reshape(5, 3, 3, 20, 20) for net in parts]
    assert (np.stack(shares, 1).reshape(data.shape) == data).all()


def test_image_data_skips_what_the_seed_says(tmp_path, pictures):
    text = image_data(tmp_path, "rand_skip: 3")
    firsts = {batches(build(text, seed=seed), 1, "label")[0][0] for seed in range(20)}
    assert firsts == {0, 10, 20}


def test_bad_image_lists_name_the_line_or_the_file(tmp_path, pictures):
    listed = tmp_path / "list.txt"
    good = listed.read_text()
    refuse(image_data(tmp_path / "no"), "cannot read the list of images")
    refuse(image_data(tmp_path, "new_height: 3"), "give both new_height and new_width")
    too_large = image_data(tmp_path, transform="crop_size: 25")
    refuse(too_large, "25 is larger than the image")
    refuse(too_large, f"image {tmp_path}/a picture 0.jpg (image 1 of the list {listed})")
    listed.write_text("a picture 0.jpg 0\nb.jpg\n")
    refuse(image_data(tmp_path), "list.txt, line 2:")
    listed.write_text("no.jpg 0\n")
    refuse(image_data(tmp_path), "no.jpg: No such file")
    listed.write_text(good.replace("picture 2", "picture 7"))
    net = build(image_data(tmp_path))
    with pytest.raises(UserError, match=r"picture 7.jpg: No such file .*\(image 3 of the list"):
        net.forward()
    (tmp_path / "a picture 7.jpg").write_bytes(
        simplejpeg.encode_jpeg(np.zeros((9, 9, 3), np.uint8))
    )
    with pytest.raises(UserError, match=r"picture 7.jpg .* is 3x9x9, but the first .* 3x24x32"):
        build(image_data(tmp_path)).forward()


def test_image_data_may_skip_bad_images(tmp_path, pictures):
    (tmp_path / "a picture 2.jpg").unlink()
    (tmp_path / "a picture 3.jpg").write_bytes(b"nonsense")
    net = build(image_data(tmp_path), skip_bad=True)
    data, labels = batches(net, 5, "data", "label")
    assert labels.tolist() == [0, 10, 40, 40, 40] * 3
    assert (data[2] == pictures[4].transpose(2, 0, 1)).all()
    (tmp_path / "a picture 0.jpg").unlink()  # which says what all are like, were it there
    net = build(image_data(tmp_path), skip_bad=True)
    assert batches(net, 5, "label")[0].tolist() == [10, 10, 40, 40, 40] * 3
    refuse(image_data(tmp_path), "a picture 0.jpg: No such file")
    for picture in tmp_path.glob("*.jpg"):
        picture.write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"list\.txt has no image that can be used"):
        build(image_data(tmp_path), skip_bad=True)


# -- HDF5Data ------------------------------------------------------------------------------------


@pytest.fixture
def rows(tmp_path):
    """Three files of 4, 3 and 5 rows; row i is i everywhere, its label i * 10 as an integer."""
    start = 0
    for number, count in enumerate((4, 3, 5)):
        numbers = np.arange(start, start + count)
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["data"] = np.broadcast_to(numbers[:, None, None], (count, 2, 3)).astype("f8")
            file["label"] = numbers * 10
        start += count
    (tmp_path / "files.txt").write_text("".join(f"{tmp_path}/{i}.h5\n" for i in range(3)))


def hdf5_data(folder, settings="", tops='top: "data" top: "label"'):
    return f"""type: "HDF5Data" {tops}
        hdf5_data_param {{ source: "{folder}/files.txt" batch_size: 5 {settings} }}"""


def test_hdf5_data_brings_rows_of_file_after_file(tmp_path, rows):
    net = build(hdf5_data(tmp_path))
    assert net.blobs["data"].shape == (5, 2, 3)
    assert net.blobs["label"].shape == (5,)
    data, labels = batches(net, 7, "data", "label")
    wanted = np.arange(35) % 12
    assert (data == wanted[:, None, None]).all()
    assert (labels == wanted * 10).all()
    only = build(hdf5_data(tmp_path, tops='top: "label"'))
    only.layers[0].position = 10
    assert batches(only, 1, "label")[0].tolist() == [100, 110, 0, 10, 20]


def test_hdf5_data_shuffles_files_and_their_rows(tmp_path, rows):
    text = hdf5_data(tmp_path, "shuffle: true")
    data, labels = batches(build(text), 36, "data", "label")
    assert (data[:, 0, 0] * 10 == labels).all()
    epochs = labels.reshape(15, 12)
    assert (np.sort(epochs) == np.arange(12) * 10).all()
    assert len({tuple(each) for each in epochs.tolist()}) == 15
    for epoch in epochs // 10:  # a file's rows stay together
        files = np.searchsorted([4, 7], epoch, side="right")
        assert np.count_nonzero(np.diff(files)) == 2
    later = build(text)
    later.layers[0].position = 60
    assert (batches(later, 4, "label")[0] == labels[60:80]).all()


def test_bad_hdf5_files_are_named(tmp_path, rows):
    refuse(hdf5_data(tmp_path, tops='top: "image"'), 'has no data set "image"')
    refuse(hdf5_data(tmp_path) + "transform_param { scale: 2 }", "HDF5Data does not transform")
    refuse(hdf5_data(tmp_path / "no"), "cannot read")
    with h5py.File(tmp_path / "2.h5", "a") as file:
        del file["data"]
        file["data"] = np.zeros((5, 2, 4))
    refuse(hdf5_data(tmp_path), "all files need one shape")
    with h5py.File(tmp_path / "2.h5", "a") as file:
        del file["data"]
        file["data"] = np.zeros((6, 2, 3))
    refuse(hdf5_data(tmp_path), "differ in their number of rows: data 6, label 5")
    (tmp_path / "2.h5").write_bytes(b"nonsense")
    refuse(hdf5_data(tmp_path), f"{tmp_path}/2.h5: not a HDF5 file of data, or damaged")


# -- MemoryData ----------------------------------------------------------------------------------

MEMORY = """type: "MemoryData" top: "data" top: "label"
    memory_data_param { batch_size: 2 channels: 3 height: 4 width: 5 }"""


def test_memory_data_brings_its_arrays_over_and_over():
    net = build(MEMORY)
    with pytest.raises(UserError, match="no data yet"):
        net.forward()
    data = np.random.default_rng(0).random((6, 3, 4, 5), np.float32)
    net.layers[0].set_arrays(data, np.arange(6).reshape(6, 1, 1, 1))
    found, labels = batches(net, 4, "data", "label")
    assert labels.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert (found == data[[0, 1, 2, 3, 4, 5, 0, 1]]).all()
    net.layers[0].set_arrays(data[:2], [7, 8])
    assert batches(net, 2, "label")[0].tolist() == [7, 8, 7, 8]


def test_memory_data_transforms_images_that_are_added():
    net = build(MEMORY + "transform_param { scale: 0.5 }")
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 5), dtype=np.uint8)
    net.layers[0].add_images(images, [1, 2])
    assert (batches(net, 1, "data")[0] == images * np.float32(0.5)).all()


def test_bad_memory_data_names_the_layer():
    refuse(MEMORY.replace("height: 4", ""), "memory_data_param.height: is missing")
    layer = build(MEMORY).layers[0]
    with pytest.raises(UserError, match=r"\(N, 3, 4, 5\) with N a multiple of batch_size 2"):
        layer.set_arrays(np.zeros((3, 3, 4, 5), np.float32), [0, 0, 0])
    with pytest.raises(UserError, match="1 labels for 2 images"):
        layer.set_arrays(np.zeros((2, 3, 4, 5), np.float32), [0])
    with pytest.raises(UserError, match=r"become \(3, 6, 6\) by transform_param"):
        layer.add_images(np.zeros((2, 3, 6, 6), np.uint8), [0, 0])


# -- WindowData ----------------------------------------------------------------------------------


def window_data(folder, settings="", transform="crop_size: 8"):
    return f"""type: "WindowData" top: "data" top: "label" transform_param {{ {transform} }}
        window_data_param {{ source: "{folder}/windows.txt" root_folder: "{folder}/" batch_size: 8
        {settings} }}"""


@pytest.fixture
def windows(tmp_path, pictures):
    """Two images: windows of class 1 and 2 (foreground), and two of the background."""
    (tmp_path / "windows.txt").write_text(
        "# 0\na picture 0.jpg\n3\n24\n32\n2\n1 0.9 2 3 17 18\n1 0.2 0 0 7 7\n"
        "# 1\na picture 1.jpg\n3\n24\n32\n2\n2 0.5 8 8 31 23\n0 0 16 0 31 15\n"
    )
    return pictures


def warp(image, box):
    x1, y1, x2, y2 = box
    return resize(image[y1 : y2 + 1, x1 : x2 + 1], 8, 8).transpose(2, 0, 1).astype(np.float32)


@pytest.mark.parametrize("cache", ["", "cache_images: true"])
def test_window_data_warps_windows_background_first(tmp_path, windows, cache):
    net = build(window_data(tmp_path, cache, "crop_size: 8 mean_value: 50 scale: 2"))
    assert net.layers[0].records == 4
    data, labels = batches(net, 10, "data", "label")
    sets = {
        0: [warp(windows[0], (0, 0, 7, 7)), warp(windows[1], (16, 0, 31, 15))],
        1: [warp(windows[0], (2, 3, 17, 18))],
        2: [warp(windows[1], (8, 8, 31, 23))],
    }
    seen = set()
    assert (labels.reshape(10, 8)[:, :6] == 0).all()  # fg_fraction is 0.25
    assert (labels.reshape(10, 8)[:, 6:] > 0).all()
    for image, label in zip(data, labels, strict=True):
        match = [(image == (each - 50) * 2).all() for each in sets[int(label)]]
        assert sum(match) == 1
        seen.add((int(label), match.index(True)))
    assert seen == {(0, 0), (0, 1), (1, 0), (2, 0)}
    again = build(window_data(tmp_path, cache, "crop_size: 8 mean_value: 50 scale: 2"))
    again.layers[0].position = 24
    assert (batches(again, 7, "data")[0] == data[24:]).all()


@pytest.mark.usefixtures("readers_are")
def test_window_data_mirrors_about_half_of_the_windows(tmp_path, windows):
    text = window_data(tmp_path, "fg_fraction: 1", "crop_size: 8 mirror: true")
    data, labels = batches(build(text), 10, "data", "label")
    wanted = warp(windows[0], (2, 3, 17, 18))
    ones = data[labels == 1]
    mirrored = (ones == wanted[:, :, ::-1]).all(axis=(1, 2, 3))
    assert (mirrored | (ones == wanted).all(axis=(1, 2, 3))).all()
    assert 0.2 < mirrored.mean() < 0.8


def test_context_shows_the_surroundings_and_leaves_out_what_is_not_in_the_image():
    # A box of 16 pixels, context 2 of 8: the box takes 4 of the 8, so 32 pixels are shown.
    cut = plan_cut((8, 8, 23, 23), (100, 100), 8, context=2)
    assert cut.source == (slice(0, 33), slice(0, 33))
    assert cut.target == (slice(0, 8), slice(0, 8))
    # At the left edge, a quarter of the square would show what is left of the image.
    edge = plan_cut((0, 40, 15, 55), (100, 100), 8, context=2)
    assert edge.source == (slice(40 - 8, 65), slice(0, 25))
    assert edge.target == (slice(0, 8), slice(2, 8))
    flipped = plan_cut((0, 40, 15, 55), (100, 100), 8, context=2, mirror=True)
    assert flipped.source == edge.source
    assert flipped.target == (slice(0, 8), slice(0, 6))


def test_square_windows_grow_about_their_centre():
    warped = plan_cut((10, 10, 19, 29), (50, 50), 10)
    assert warped.source == (slice(10, 30), slice(10, 20))
    square = plan_cut((10, 10, 19, 29), (50, 50), 10, square=True)
    assert square.source == (slice(10, 31), slice(5, 26))


def test_the_outside_is_zero_and_the_mean_is_that_of_its_place(tmp_path, windows):
    (tmp_path / "windows.txt").write_text("# 0\na picture 0.jpg\n3\n24\n32\n1\n1 0.9 0 4 7 11\n")
    mean = np.random.default_rng(0).random((3, 10, 10), np.float32)
    blob = caffe_pb2.BlobProto(num=1, channels=3, height=10, width=10, data=mean.ravel())
    (tmp_path / "mean.binaryproto").write_bytes(blob.SerializeToString())
    text = window_data(
        tmp_path,
        "context_pad: 2 fg_fraction: 1",
        f'crop_size: 8 mean_file: "{tmp_path}/mean.binaryproto"',
    )
    data, _ = batches(build(text), 1, "data", "label")
    cut = plan_cut((0, 4, 7, 11), (24, 32), 8, context=2)
    assert cut.source[1].start == 0
    left = cut.target[1].start
    assert left == 2
    assert (data[:, :, :, :left] == 0).all()
    part = resize(windows[0][cut.source], 8, 8 - left).transpose(2, 0, 1).astype(np.float32)
    assert np.allclose(data[0, :, :, left:], part - mean[:, 1:9, 1:9][:, :, left:])


def test_bad_window_files_name_the_line(tmp_path, windows):
    path = Path(tmp_path / "windows.txt")
    good = path.read_text()
    refuse(window_data(tmp_path, transform=""), "transform_param.crop_size: is missing")
    refuse(window_data(tmp_path, 'crop_mode: "wrap"'), '"wrap": use warp or square')
    refuse(window_data(tmp_path, "context_pad: 4"), "leaves nothing of crop_size 8")
    refuse(window_data(tmp_path, "fg_threshold: 0.95"), "has no foreground windows")
    path.write_text(good.replace("1 0.2 0 0 7 7", "1 0.2 0 0 7"))
    refuse(window_data(tmp_path), "windows.txt, line 8:")
    path.write_text(good.replace("0 0 16 0 31 15\n", ""))
    refuse(window_data(tmp_path), "the file ends where a window should stand")
    path.write_text(good.replace("picture 1", "picture 9"))
    with pytest.raises(UserError, match=r"picture 9.jpg: No such file .*image 1 of"):
        build(window_data(tmp_path, "fg_fraction: 1")).forward()
    path.write_text(good.replace("0.9 2 3 17 18", "0.9 40 3 50 18"))
    with pytest.raises(UserError, match=r"40 3 50 18 lies outside of"):
        batches(build(window_data(tmp_path, "fg_fraction: 1")), 5, "data")


# -- ImageFloatData ------------------------------------------------------------------------------


@pytest.fixture
def landmarks(tmp_path, pictures):
    """The pictures with two numbers and a weight each, in floats.txt; maps in heat/."""
    (tmp_path / "heat").mkdir()
    numbers, lines = np.arange(15).reshape(5, 3) / 8, []
    for i, image in enumerate(pictures):
        (tmp_path / f"a picture {i}.jpg").rename(tmp_path / f"{i}.jpg")
        gray = np.full((*image.shape[:2], 1), 50 * i, np.uint8)
        content = simplejpeg.encode_jpeg(gray, colorspace="GRAY")
        (tmp_path / "heat" / f"{i}.jpg").write_bytes(content)
        lines.append(" ".join([f"{i}.jpg", *map(str, numbers[i])]))
    (tmp_path / "floats.txt").write_text("\n".join(lines))
    return numbers


def float_data(folder, settings, tops=2, more=""):
    top = " ".join(f'top: "t{i}"' for i in range(tops))
    return f"""type: "ImageFloatData" {top} image_float_data_param {{ {settings} }}
        image_data_param {{ source: "{folder}/floats.txt" root_folder: "{folder}/" batch_size: 5 }}
        {more}"""


def test_image_float_data_brings_numbers_weights_and_maps(tmp_path, pictures, landmarks) -> None:
    image, numbers = batches(build(float_data(tmp_path, "label_dim: 3")), 2, "t0", "t1")
    wanted = np.transpose(pictures, (0, 3, 1, 2))
    np.testing.assert_array_equal(image, np.concatenate([wanted, wanted]))
    np.testing.assert_allclose(numbers, np.tile(landmarks, (2, 1)))
    text = float_data(
        tmp_path,
        f'label_dim: 2 hard_sample: true with_heatmap: true heatmap_dir: "{tmp_path}/heat/"',
        tops=3,
        more="transform_param { scale: 0.5 }",
    )
    mapped, numbers, weight = batches(build(text), 1, "t0", "t1", "t2")
    np.testing.assert_allclose(mapped[:, :3], image[:5] / 2)
    for i in range(5):
        assert (mapped[i, 3] == 25 * i).all()
    np.testing.assert_allclose(numbers, landmarks[:, :2])
    np.testing.assert_allclose(weight, landmarks[:, 2])


def test_bad_input_of_image_float_data_is_named(tmp_path, pictures, landmarks) -> None:
    refuse(float_data(tmp_path, "label_dim: 2"), "is not an image's name and 2 numbers")
    refuse(float_data(tmp_path, "label_dim: 0"), "label_dim: must be at least 1")
    refuse(float_data(tmp_path, "label_dim: 3", 3), "a third one is for the weights")
    mirror = "transform_param { mirror: true }"
    refuse(float_data(tmp_path, "label_dim: 3", more=mirror), "it would move the landmarks")
