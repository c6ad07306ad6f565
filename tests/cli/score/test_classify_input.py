"""The stream of image files that `osucaffe classify` runs a net on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import simplejpeg

from osucaffe.cli.score import classify_input
from osucaffe.cli.score.classify_input import FileInput, ImageFiles
from osucaffe.errors import UserError
from osucaffe.pycaffe.image_input import ImageInput

from .test_classify import classify, digits, scores  # noqa: F401 (fixtures)


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
    files = ImageFiles(paths, entry, oversample=crops == 10)
    stream = files.stream((3, crops, 3, 8, 10), readers=2)
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
    stream = ImageFiles(paths, entry, oversample=False).stream((3, 1, 3, 8, 10), readers=2)
    try:
        stream.next()
        with pytest.raises(UserError, match=r"4\.jpg: "):
            stream.next()
    finally:
        stream.close()


def test_more_images_are_classified_at_a_time(cli, classify, digits) -> None:  # noqa: F811
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
def test_a_gpu_finds_what_the_cpu_does(cli, classify, digits) -> None:  # noqa: F811
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
