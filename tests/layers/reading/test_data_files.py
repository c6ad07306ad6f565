"""Tests of ImageData, HDF5Data, MemoryData and WindowData: what they bring, and bad input."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import simplejpeg

from osucaffe.data.config import DataConfig
from osucaffe.data.pictures.image import resize
from osucaffe.errors import UserError
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
    listed.write_text("a picture 0.jpg 0 9\n")
    refuse(image_data(tmp_path), "No such file")
    (tmp_path / "b.jpg").touch()
    listed.write_text("b.jpg 1.5 9\n")
    refuse(image_data(tmp_path), "list.txt: a line has one label, but b.jpg has several)")
    listed.write_text("\ufeff" + good, encoding="utf-8")  # as Windows' editors begin a text
    assert batches(build(image_data(tmp_path)), 1, "label")[0].tolist() == [0, 10, 20]
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


def test_arrays_are_not_transformed_which_is_told(caplog):
    layer = build(f"{MEMORY} transform_param {{ scale: 2 }}").layers[0]
    layer.add_images(np.ones((2, 3, 4, 5), np.uint8), [0, 0])
    assert not caplog.records
    layer.set_arrays(np.ones((2, 3, 4, 5), np.float32), [0, 0])
    assert "transform_param does not apply to arrays" in caplog.text


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


def test_bad_window_files_name_the_line(tmp_path, windows):
    path = Path(tmp_path / "windows.txt")
    good = path.read_text()
    refuse(window_data(tmp_path, transform=""), "transform_param.crop_size: is missing")
    refuse(window_data(tmp_path, 'crop_mode: "wrap"'), '"wrap": use warp or square')
    refuse(window_data(tmp_path, "context_pad: 4"), "leaves nothing of crop_size 8")
    refuse(window_data(tmp_path, "fg_threshold: 0.95"), "has no foreground windows")
    path.write_text(good.replace("1 0.2 0 0 7 7", "1 0.2 0 0 7"))
    refuse(window_data(tmp_path), "windows.txt, line 8:")
    path.write_text(good.replace("1 0.2 0 0 7 7", "1 0.2 0 8 7 7"))
    refuse(window_data(tmp_path), "windows.txt, line 8: the window 0 8 7 7 ends before it begins")
    path.write_text(good.replace("0 0 16 0 31 15\n", ""))
    refuse(window_data(tmp_path), "expected a window, found the end of the file")
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
