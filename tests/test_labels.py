"""Labels that the layers which read them do not take are refused where they come from."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import simplejpeg

from osucaffe.backends.cpu import Cpu
from osucaffe.data.config import DataConfig
from osucaffe.data.databases.database import record_key, write_database
from osucaffe.data.databases.datum import make_datum
from osucaffe.errors import UserError
from osucaffe.labels import Classes, Labels
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2
from tests.layers import nets

SCORES = """layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
    inner_product_param { num_output: 4 } }"""
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "l" %s }'
SCORE = 'layer { name: "score" type: "Accuracy" bottom: "ip" bottom: "label" top: "a" %s }'
READER = 'layer "loss" (SoftmaxWithLoss) has 4 classes, 0 to 3'


def build(data: str, loss: str = LOSS % "", *, raw: bool = False, skip: bool = False) -> Net:
    backend = Cpu()
    backend.raw_records = raw
    text = f'layer {{ name: "d" top: "data" top: "label" {data} }} {SCORES} {loss}'
    return nets.build(text, backend, phase="TRAIN", data_config=DataConfig(skip_bad=skip))


def labels_of(net: Net, batches: int) -> list[int]:
    taken = []
    for _ in range(batches):
        net.forward()
        taken += net.read("label").astype(int).tolist()
    net.layers[0].close()
    return taken


def refused(data: str, *parts: str, loss: str = LOSS % "", **options: bool) -> None:
    with pytest.raises(UserError) as caught:
        labels_of(build(data, loss, **options), 3)
    for part in parts:
        assert part in str(caught.value)


def test_the_first_wrong_label_is_found() -> None:
    labels = Labels([Classes("a", 4), Classes("b", 6, 255)])
    assert labels.wrong(np.array([0, 3.7, -0.5, 3])) is None  # the fraction is cut off
    for wrong in (4, -1, 255, np.nan, np.inf):
        assert labels.wrong(np.array([[0, 1], [wrong, 9]])) == 2
        with pytest.raises(UserError, match=r"x\[1, 0\] has label .* a has 4 classes"):
            labels.check_all(np.array([[0, 1], [wrong, 9]]), "x")
    ignoring = Labels([Classes("b", 6, 255)])
    assert ignoring.wrong(np.array([5, 255, -1])) == 2
    with pytest.raises(UserError, match="0 to 5 and ignores 255"):
        ignoring.check(254, "x")
    assert Labels().wrong(np.array([1e9, np.nan])) is None


@pytest.fixture
def database(tmp_path: Path):
    """An LMDB of records with these labels; side: of the images, of which large ones go in bulk."""

    def make(labels: list[int], side: int = 2, encoded: bool = False) -> str:
        random = np.random.default_rng(0)
        images = [random.integers(256, size=(3, side, side), dtype=np.uint8) for _ in labels]
        records = [make_datum(each, label) for each, label in zip(images, labels, strict=True)]
        if encoded:
            for number, image in enumerate(images):
                file = simplejpeg.encode_jpeg(np.ascontiguousarray(image.transpose(1, 2, 0)))
                datum = caffe_pb2.Datum(data=file, label=labels[number], encoded=True)
                records[number] = datum.SerializeToString()
        write_database(tmp_path / "lmdb", ((record_key(i), r) for i, r in enumerate(records)))
        return (
            f'type: "Data" data_param {{ source: "{tmp_path}/lmdb" batch_size: 3 backend: LMDB }}'
        )

    return make


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(("side", "encoded"), [(2, False), (90, False), (16, True)])
def test_a_record_is_named(database, tmp_path, side: int, encoded: bool, raw: bool) -> None:
    data = database([0, 1, 2, 3, 4, 0], side, encoded)
    refused(data, f'record "00000004" of {tmp_path}/lmdb has label 4, but {READER}', raw=raw)
    assert labels_of(build(database([0, 1, 2, 3], side, encoded), raw=raw), 2) == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("raw", [False, True])
def test_records_with_such_labels_can_be_skipped(database, raw: bool) -> None:
    data = database([9, 1, 2, 7, 3], 90)
    assert labels_of(build(data, raw=raw, skip=True), 2) == [1, 1, 2, 3, 3, 1]
    refused(database([9, 8]), "lmdb has no record that can be used", raw=raw, skip=True)


def test_every_reader_counts_and_may_ignore_a_label(database) -> None:
    data = database([0, 255, 3])
    ignoring = "loss_param { ignore_label: 255 }"
    assert labels_of(build(data, LOSS % ignoring), 1) == [0, 255, 3]
    both = LOSS % ignoring + SCORE % "accuracy_param { ignore_label: 255 }"
    assert labels_of(build(data, both), 1) == [0, 255, 3]
    refused(data, "label 255", READER, loss=LOSS % "" + SCORE % "")
    flat = """layer { name: "f" type: "Reshape" bottom: "label" top: "flat"
        reshape_param { shape { dim: 3 } } }"""
    refused(data, "label 255", READER, loss=flat + (LOSS % "").replace('"label"', '"flat"'))
    silence = 'layer { name: "s" type: "Silence" bottom: "ip" bottom: "label" }'
    assert labels_of(build(data, silence), 1) == [0, 255, 3]  # nobody reads them as labels


def test_an_image_of_a_list_is_named(tmp_path) -> None:
    (tmp_path / "a.jpg").write_bytes(simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8)))
    (tmp_path / "list").write_text("a.jpg 1\na.jpg 4\na.jpg 2\n")
    data = f"""type: "ImageData" image_data_param {{ source: "{tmp_path}/list" batch_size: 3
        root_folder: "{tmp_path}/" }}"""
    refused(data, f"a.jpg (image 2 of the list {tmp_path}/list) has label 4", READER)
    assert labels_of(build(data, skip=True), 1) == [1, 2, 2]


def test_a_row_of_an_hdf5_file_is_named(tmp_path) -> None:
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["data"], file["label"] = np.zeros((4, 2)), np.array([0, 1, -1, 2])
    (tmp_path / "list").write_text(f"{tmp_path}/rows.h5\n")
    data = f'type: "HDF5Data" hdf5_data_param {{ source: "{tmp_path}/list" batch_size: 2 }}'
    refused(data, f'{tmp_path}/rows.h5: data set "label"[2] has label -1', READER)


def test_an_array_in_memory_is_named() -> None:
    net = build(
        'type: "MemoryData" memory_data_param { batch_size: 2 channels: 1 height: 1 width: 1 }'
    )
    net.layers[0].set_arrays(np.zeros((4, 1, 1, 1), np.float32), np.array([0, 1, 2, 4]))
    net.forward()
    with pytest.raises(UserError, match=r'layer "d" \(MemoryData\): image 3 of .* has label 4'):
        net.forward()


def test_a_window_is_named(tmp_path) -> None:
    (tmp_path / "a.jpg").write_bytes(simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8)))
    windows = "7 0.9 0 0 4 4\n0 0.1 0 0 4 4\n"
    (tmp_path / "windows").write_text(f"# 0\n{tmp_path}/a.jpg\n3\n8\n8\n2\n{windows}")
    data = f"""type: "WindowData" transform_param {{ crop_size: 4 }}
        window_data_param {{ source: "{tmp_path}/windows" batch_size: 2 }}"""
    refused(data, f"a foreground window of {tmp_path}/a.jpg has label 7", READER)


def test_what_is_written_to_an_input_is_checked() -> None:
    net = build('type: "Input" input_param { shape { dim: 2 dim: 3 } shape { dim: 2 } }', LOSS % "")
    net.write("label", np.array([3, 0]))
    with pytest.raises(UserError, match=r'blob "label"\[1\] has label 4, but layer "loss"'):
        net.write("label", np.array([0, 4]))


@pytest.mark.parametrize("side", [2, 90])
def test_accuracy_counts_labels_of_no_class_as_wrong(database, caplog, side: int) -> None:
    """As C++ Caffe does, without a word (SegNet's nets name "void" to the loss alone)."""
    tops = 'layer { name: "score" type: "Accuracy" bottom: "ip" bottom: "label" top: "a" top: "c" }'
    ignoring = LOSS % "loss_param { ignore_label: 11 }"
    net = build(database([1, 11, 1, 2], side), ignoring + tops)
    [ip] = (layer for layer in net.layers if layer.name == "ip")
    net.backend.write(ip.parameters[0].data, np.zeros(ip.parameters[0].shape))
    net.backend.write(ip.parameters[1].data, np.array([0, 1, 0, 0]))
    for _ in range(2):
        net.forward()
    assert net.read("label").tolist() == [2, 1, 11]
    np.testing.assert_allclose(net.read("a"), 1 / 3, rtol=1e-6)
    assert net.read("c").tolist() == [0, 1, 0, 0]
    net.layers[0].close()
    [message] = (r.getMessage() for r in caplog.records if "names none" in r.getMessage())
    assert message.startswith('layer "score" (Accuracy): label 11 names none of its 4 classes')
    assert message.endswith("accuracy_param { ignore_label: 11 } leaves it out")
