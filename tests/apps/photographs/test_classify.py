"""osucaffe classify: labels and scores, the stream of files, means, pictures, ranks, bad input."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import simplejpeg

from osucaffe.apps.photographs import classify_input
from osucaffe.apps.photographs.classify_input import FileInput, ImageFiles
from osucaffe.backends.cpu import Cpu
from osucaffe.cli.score import sharding
from osucaffe.comm.job.job import Job
from osucaffe.data.ahead.parallel_map import BadRecords
from osucaffe.data.databases.database import open_database
from osucaffe.data.databases.datum import parse_datum, pixels
from osucaffe.errors import UserError
from osucaffe.proto import write_mean
from osucaffe.pycaffe.image_input import ImageInput
from tests.cli.conftest import DEPLOY
from tests.cli.score.test_extract_features import prepare
from tests.data.records import read_records

LOG = re.compile(r"[IW]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \w+\.py:\d+\] ")
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@pytest.fixture
def digits(cli, fixtures):
    """Writes so many digits as files; returns their names and labels."""

    def write(count):
        database = open_database(fixtures / "formats" / "mnist200_lmdb")
        names, labels = [], []
        records = database.read(0, count)
        for _, value in records:
            datum = parse_datum(value)
            digit = np.ascontiguousarray(pixels(datum)[0])[:, :, None]
            content = simplejpeg.encode_jpeg(digit, quality=98, colorspace="GRAY")
            names.append(f"{len(names)}.jpg")
            (cli.folder / names[-1]).write_bytes(content)
            labels.append(datum.label)
        return names, labels

    return write


@pytest.fixture
def classify(cli, root, fixtures, digits):
    """Runs the command on digit.jpg with the LeNet that C++ Caffe trained."""
    (name,), (label,) = digits(1)
    (cli.folder / name).rename(cli.folder / "digit.jpg")
    cli.answer = NAMES[label]
    cli.write("labels.txt", "\n".join(NAMES) + "\n")
    cli.deploy = str(root / "models" / "lenet" / "deploy.prototxt")
    cli.weights = str(fixtures / "formats" / "lenet_iter_200.caffemodel")
    common = ["--model", cli.deploy, "--weights", cli.weights]
    return lambda *arguments: cli("classify", *common, *arguments)


def message(done):
    """What the program says at its end, behind the log."""
    *log, last = done.err.splitlines()
    assert all(LOG.match(line) for line in log), log
    return last


def test_labels_and_scores(cli, classify):
    done = classify("digit.jpg", "--labels", "labels.txt", "--top", "3")
    assert done.code == 0, done.err
    path, *lines = done.out.splitlines()
    assert path == "digit.jpg"
    assert len(lines) == 3
    score, label = lines[0].split()
    assert label == cli.answer
    assert float(score) > 0.9
    assert "class " in classify("digit.jpg", "digit.jpg").out
    _, loaded, images = done.err.splitlines()
    assert loaded.endswith("lenet_iter_200.caffemodel: 4 of 4 layers with weights loaded")
    assert re.search(
        r"Images are scaled to 28x28; 0..255, times 0.00390625 \(trained: .*caffemodel, layer "
        r'"mnist" \(Data\)\)$',
        images,
    )


def scores(done):
    assert done.code == 0, done.err
    return done.out


def test_what_is_not_said_is_as_in_training(cli, classify, digits):
    """Right without an option, whatever option is given besides."""
    names, labels = digits(24)
    by_model = classify(*names, "--top", "1")
    found = [int(line.split()[-1]) for line in by_model.out.splitlines()[1::2]]
    assert sum(a == b for a, b in zip(found, labels, strict=True)) >= 22
    assert scores(classify(*names, "--top", "1", "--input_scale", "0.00390625")) == by_model.out
    raw = classify(*names, "--top", "1", "--input_scale", "1")
    assert "; 0..255 (trained" in raw.err
    assert scores(raw) != by_model.out
    both = classify(*names, "--top", "1", "--raw_scale", "1", "--input_scale", "0.99609375")
    assert both.out == by_model.out


def test_a_model_that_says_nothing_is_told_of(cli, classify, fixtures):
    """An HDF5 file of C++ Caffe holds names and weights only."""
    model = str(fixtures / "formats" / "h5lenet_iter_200.caffemodel.h5")
    known = classify("digit.jpg", "--weights", model, "--input_scale", "0.00390625")
    assert known.code == 0
    assert "Nothing is known" not in known.err
    done = classify("digit.jpg", "--weights", model)
    assert re.search(r"^W.*\] How images were preprocessed in training is unknown", done.err, re.M)
    assert "give --trained_with train_val.prototxt" in done.err
    cli.write_net()
    done = classify("digit.jpg", "--weights", model, "--trained_with", "net.prototxt")
    assert "(trained: net.prototxt, layer " in done.err
    assert done.out == known.out
    done = classify("digit.jpg", "--trained_with", cli.deploy)
    assert done.code == 1
    assert "has no layer that reads images" in message(done)


@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
def test_what_train_writes_classifies_alike(cli, digits, form):
    """Crops, a mean and a scale travel with the model, and how large images were."""
    cli.write_net(transform="crop_size: 20 mean_value: 33")
    cli.write_solver(f"snapshot_format: {form}")
    cli.ok("train", "--solver", "solver.prototxt")
    cli.write("deploy.prototxt", DEPLOY.replace("dim: 28 dim: 28", "dim: 20 dim: 20"))
    names, _ = digits(2)
    end = ".h5" if form == "HDF5" else ""
    common = ["--model", "deploy.prototxt", "--weights", f"run_iter_10.caffemodel{end}", *names]
    done = cli.ok("classify", *common)
    assert re.search(
        r"scaled to 28x28, of which the middle of 20x20; 0..255, less the mean 33, times 0.0039062",
        done.err,
    )
    flags = ["--image_dims", "28,28", "--mean", "33", "--input_scale", "0.00390625"]
    assert cli("classify", *common, *flags).out == done.out
    other = cli("classify", *common, "--image_dims", "20,20")
    assert scores(other) != done.out


def test_weights_that_match_no_layer(cli, classify):
    net = Path(cli.deploy).read_text()
    cli.write("renamed.prototxt", net.replace('name: "ip2"', 'name: "fc"'))
    done = classify("digit.jpg", "--model", "renamed.prototxt")
    assert done.code == 0
    assert "3 of 4 layers with weights loaded; not in the file: fc; unused: ip2" in done.err
    done = classify("digit.jpg", "--model", "renamed.prototxt", "--strict")
    assert done.code == 1
    assert re.search(r"not loaded: fc; unused of .*: ip2: give files that match", message(done))
    for name in ("conv1", "conv2", "ip1", "ip2"):
        net = net.replace(f'name: "{name}"', f'name: "{name}_new"')
    cli.write("other.prototxt", net)
    done = classify("digit.jpg", "--model", "other.prototxt")
    assert done.code == 1
    assert "nothing to load: it has conv1, conv2, ip1, ip2, but the layers" in message(done)
    assert done.out == ""


def test_means(cli, classify):
    plain = classify("digit.jpg").out
    assert classify("digit.jpg", "--mean", "0").out == plain
    assert classify("digit.jpg", "--mean", "100").out != plain
    write_mean(cli.folder / "mean.binaryproto", np.zeros((1, 32, 32), np.float32))
    assert classify("digit.jpg", "--mean", "mean.binaryproto").out == plain
    np.save(cli.folder / "mean.npy", np.zeros((1, 14, 14)))
    assert classify("digit.jpg", "--mean", "mean.npy").out == plain
    assert "2 mean values for 1 channels" in classify("digit.jpg", "--mean", "1,2").err
    assert "no such file" in classify("digit.jpg", "--mean", "none.npy").err


def test_a_picture_is_written(cli, classify):
    pytest.importorskip("matplotlib")
    done = classify("digit.jpg", "digit.jpg", "--picture", "bars.svg", "--labels", "labels.txt")
    assert done.code == 0, done.err
    assert "<svg" in (cli.folder / "bars.svg").read_text()
    assert "cannot write the picture" in classify("digit.jpg", "--picture", "bars.xyz").err


def test_bad_input(cli, classify):
    cli.write("few.txt", "zero\none\n")
    assert "has 2 labels for 10 classes" in classify("digit.jpg", "--labels", "few.txt").err
    assert "cannot read the labels" in classify("digit.jpg", "--labels", "none.txt").err
    assert "cannot read image none.jpg: No such file" in classify("none.jpg").err
    assert message(classify("labels.txt")) == (
        "osucaffe: cannot read image labels.txt: not an image of a known format; "
        "--on_bad_record skip goes on without it"
    )
    cli.write("mean.npy", "no array")
    for options, expected in [
        (["--channel_swap", "2,1,0"], "--channel_swap 2,1,0: the net's channels are 0, each once"),
        (["--image_dims", "3"], "--image_dims: must be height,width, not '3'"),
        (["--image_dims", "9,28"], "image_dims (9, 28) must not be smaller than the net's input"),
        (["--mean", "mean.npy"], "--mean mean.npy: not a whole .npy file"),
    ]:
        done = classify("digit.jpg", *options)
        assert expected in message(done)


def test_a_folder_of_images_and_one_by_one_are_the_same(cli, classify, digits):
    folder = cli.folder / "many" / "inside"
    folder.mkdir(parents=True)
    names, _ = digits(23)
    for name in names:
        (cli.folder / name).rename(folder / f"{int(name[:-4]):02}.jpg")
    (folder / "notes.txt").write_text("no image")
    (folder / "._00.jpg").write_text("what macOS adds to 00.jpg")
    paths = [str(path) for path in sorted(folder.glob("[0-9]*.jpg"))]
    whole = classify("--top", "2", str(folder.parent)).out
    assert whole.splitlines()[::3] == paths
    parts = [classify("--top", "2", "--threads", "1", *paths[i : i + 9]).out for i in (0, 9, 18)]
    assert whole == "".join(parts)
    (cli.folder / "none").mkdir()
    assert "no images in this folder" in message(classify(str(cli.folder / "none")))


@pytest.fixture
def entry() -> FileInput:
    """Photographs enter as 3x8x10, the middle of 12x12."""
    blob = SimpleNamespace(data=np.empty((1, 3, 8, 10), np.float32))
    net = SimpleNamespace(inputs=["data"], blobs={"data": blob})
    mean = np.array([104, 117, 123])
    given = ImageInput(net, mean=mean, input_scale=0.5, raw_scale=255, channel_swap=(2, 1, 0))
    return FileInput(given, (12, 12))


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Seven photographs of several sizes."""
    random = np.random.default_rng(0)
    for index in range(7):
        pixels = random.integers(0, 256, (20 + index, 30, 3), dtype=np.uint8)
        (tmp_path / f"{index}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels))
    return sorted(map(str, tmp_path.iterdir()))


@pytest.mark.parametrize(
    ("many", "crops"), [(1000, 1), (1000, 10), (1, 1)], ids=["threads", "crops", "processes"]
)
def test_files_come_in_their_order(
    entry: FileInput, paths: list[str], many: int, crops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classify_input, "_MANY", many)
    files = ImageFiles(paths, entry, BadRecords(), oversample=crops == 10)
    stream = files.stream((3, crops, 3, 8, 10), 2, Cpu(threads=1))
    try:
        found = np.concatenate([stream.next()[0].array.copy() for _ in range(3)])
    finally:
        stream.close()
    expected = [entry.enter(path, crops == 10) for path in paths]
    assert found.shape == (9, crops, 3, 8, 10)
    np.testing.assert_allclose(found[:7], expected, rtol=0, atol=1e-4)
    assert np.ptp(expected[0]) > 50
    assert not found[7:].any()


def test_a_bad_file_is_named(entry: FileInput, paths: list[str]) -> None:
    Path(paths[4]).write_bytes(b"no image")
    files = ImageFiles(paths, entry, BadRecords(), oversample=False)
    stream = files.stream((3, 1, 3, 8, 10), 2, Cpu(threads=1))
    try:
        stream.next()
        with pytest.raises(UserError, match=r"4\.jpg: "):
            stream.next()
    finally:
        stream.close()


@pytest.mark.parametrize("many", [1000, 1], ids=["threads", "processes"])
def test_bad_files_are_skipped(
    entry: FileInput, paths: list[str], many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classify_input, "_MANY", many)
    Path(paths[4]).write_bytes(b"no image")
    files = ImageFiles(paths, entry, BadRecords(skip=True), oversample=False)
    stream = files.stream((7, 1, 3, 8, 10), 2, Cpu(threads=1))
    with contextlib.closing(stream):
        found = stream.next()[0].array.copy()
    assert files.bad.skipped == {4}
    np.testing.assert_allclose(found[6], entry.enter(paths[6], False), atol=1e-4)


def test_a_folder_goes_on_after_a_bad_file(cli, classify, digits):
    """Files in folders with names of classes are counted."""
    names, labels = digits(12)
    for name, label in zip(names, labels, strict=True):
        (cli.folder / "all" / NAMES[label]).mkdir(parents=True, exist_ok=True)
        (cli.folder / name).rename(cli.folder / "all" / NAMES[label] / name)
    bad = cli.folder / "all" / NAMES[labels[0]] / "bad.png"
    bad.write_bytes(b"no image")
    stopped = classify("all", "--labels", "labels.txt")
    assert stopped.code == 1
    assert message(stopped).endswith("; --on_bad_record skip goes on without it")
    skipping = ("all", "--labels", "labels.txt", "--on_bad_record", "skip", "--top", "1")
    done = classify(*skipping)
    assert re.search(r"Skipped: .*bad\.png: .*not an image", done.err)
    *_, shares, count = scores(done).splitlines()
    assert count == "12 of 13 images; the others are bad"
    found = json.loads(scores(classify(*skipping, "--json")))
    assert [Path(each["image"]).parent.name for each in found] == [each["class"] for each in found]
    right = sum(each["labels"][0]["label"] == each["class"] for each in found)
    assert f"right: {right} of 12 images" in shares
    assert classify(str(bad), *skipping[3:]).err.endswith("none of 1 images can be read\n")


def test_more_images_are_classified_at_a_time(cli, classify, digits) -> None:
    """As many as are worth a pass, where the model says less and its layers can have more."""
    names, _ = digits(20)
    net = Path(cli.deploy).read_text().replace("dim: 64", "dim: 3")
    cli.write("small.prototxt", net)
    reshape = 'type: "Reshape" bottom: "data" top: "r" reshape_param { shape {'
    layer = f'layer {{ name: "r" {reshape} dim: 3 dim: 1 dim: 28 dim: 28 }} }} }}\n'
    head, conv1, rest = net.replace('bottom: "data"', 'bottom: "r"').partition(
        'layer {\n  name: "c'
    )
    cli.write("fixed.prototxt", head + layer + conv1 + rest)
    expected = scores(classify(*names, "--labels=labels.txt"))
    for options, passes in {
        ("--model", "small.prototxt"): True,
        ("--model", "fixed.prototxt"): False,
        ("--batch", "25", "--oversample"): True,
    }.items():
        done = classify(*names, "--labels=labels.txt", *options)
        assert ("The net takes 3 images at a time: " in done.err) != passes, done.err
        assert "All 20 images" in done.err
        assert ("--oversample" in options) != (scores(done) == expected)


@pytest.mark.gpu
def test_a_gpu_finds_what_the_cpu_does(cli, classify, digits) -> None:
    """Batches are sent to it beside the passes: each image has its own scores."""
    names, _ = digits(150)
    found = []
    for device in (), ("--gpu", "0", "--precision", "fp32"):
        done = classify(*names, "--top", "1", "--batch", "8", "--json", *device)
        best = [each["labels"][0] for each in json.loads(scores(done))]
        found.append(([each["label"] for each in best], [each["score"] for each in best]))
    (labels, values), (expected, wanted) = found
    assert labels == expected
    assert len(labels) == 150
    np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-6)


ONE = ("--threads", "1")


class Ranks(Job):
    """A rank beside others, whose values are given."""

    def __init__(self, size: int, others: list[object]) -> None:
        self.size, self._others = size, others

    def collect(self, value: object) -> list[object]:
        return [value, *self._others]


def test_batches_come_in_their_order() -> None:
    made: list[int] = []

    def make(batch: int) -> str:
        made.append(batch)
        return f"own {batch}"

    found = list(sharding.in_turn(Ranks(3, ["a", "b"]), 7, make))
    assert found == ["own 0", "a", "b", "own 3", "a", "b", "own 6"]
    assert made == [0, 3, 6]
    assert list(sharding.in_turn(Job(), 2, make)) == ["own 0", "own 1"]


def lines(text: str) -> list[str]:
    """What a log says, but for times."""
    return [re.sub(r"^.*?\] ", "", line) for line in text.splitlines()]


@pytest.mark.ranks
def test_three_ranks_score_as_one(cli) -> None:
    prepare(cli)
    command = ("test", "--model=net.prototxt", "--weights=tiny.caffemodel", "--iterations=5", *ONE)
    alone, shared = cli(*command), cli(*command, "--ranks=3")
    assert alone.code == shared.code == 0, shared.err
    found, expected = ([t for t in lines(done.err) if " = " in t] for done in (shared, alone))
    assert found == expected
    assert len(found) == 12


@pytest.mark.ranks
def test_two_ranks_classify_as_one(cli, classify, digits) -> None:
    names, _ = digits(33)
    alone, shared = classify(*names, *ONE), classify(*names, *ONE, "--ranks", "2")
    assert alone.code == shared.code == 0, shared.err
    assert shared.out == alone.out
    assert len(alone.out.splitlines()) == 33 * 6


@pytest.mark.ranks
def test_two_ranks_extract_what_one_does(cli) -> None:
    prepare(cli)
    command = ("extract_features", "tiny.caffemodel", "net.prototxt", "ip,data")
    for databases, ranks in ("a,b", "1"), ("c,d", "2"):
        done = cli.ok(*command, databases, "3", *ONE, "--ranks", ranks)
        first, second = databases.split(",")
        assert done.out == f"wrote {first}: 24 x ip\nwrote {second}: 24 x data\n"
    for one, other in ("a", "c"), ("b", "d"):
        assert read_records(cli.folder / one) == read_records(cli.folder / other)
