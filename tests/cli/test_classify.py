"""`osucaffe classify`: labels and scores, the picture, means, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import simplejpeg

from osucaffe.data.database import open_database
from osucaffe.data.datum import parse_datum, pixels
from osucaffe.proto import write_mean

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@pytest.fixture
def classify(cli, root, fixtures):
    """Runs the command on digit.jpg with the LeNet that C++ Caffe trained."""
    database = open_database(fixtures / "formats" / "mnist200_lmdb")
    with database.read(0, 1) as [(_, value)]:
        datum = parse_datum(value)
        digit = np.ascontiguousarray(pixels(datum)[0])
        cli.answer = NAMES[datum.label]
    path = cli.folder / "digit.jpg"
    path.write_bytes(simplejpeg.encode_jpeg(digit[:, :, None], quality=98, colorspace="GRAY"))
    cli.write("labels.txt", "\n".join(NAMES) + "\n")
    model = str(root / "models" / "lenet" / "deploy.prototxt")
    weights = str(fixtures / "formats" / "lenet_iter_200.caffemodel")
    common = ["--model", model, "--weights", weights, "--input_scale", "0.00390625"]
    return lambda *arguments: cli("classify", *common, *arguments)


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
    assert done.err == ""


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
    assert "none.jpg: cannot read it as an image: No such file" in classify("none.jpg").err
    said = classify("labels.txt").err
    assert (
        said
        == "osucaffe: labels.txt: cannot read it as an image: it is no image of a known format\n"
    )
    cli.write("mean.npy", "no array")
    for options, message in [
        (["--channel_swap", "2,1,0"], "--channel_swap 2,1,0: the net's channels are 0, each once"),
        (["--image_dims", "3"], "--image_dims: must be height,width, not '3'"),
        (["--image_dims", "9,28"], "image_dims (9, 28) must not be smaller than the net's input"),
        (["--mean", "mean.npy"], "--mean mean.npy: not a whole .npy file"),
    ]:
        done = classify("digit.jpg", *options)
        assert message in done.err
        assert len(done.err.splitlines()) == 1
