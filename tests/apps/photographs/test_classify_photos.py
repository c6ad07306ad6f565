"""`osucaffe classify` on photographs: they enter as in `osucaffe test`, so scores are the same."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from osucaffe.api.entry import PhotoInput, make_entry
from osucaffe.backends.cpu import Cpu
from osucaffe.data.pictures.preprocessing import find_preprocessing
from osucaffe.net import Net
from osucaffe.proto import read_net, read_solver, read_weights
from osucaffe.pycaffe import Classifier
from tests.cli.conftest import Cli

from .photos import make_photos

pytest.importorskip("PIL")


def train(cli: Cli, folder: str, *options: str) -> None:
    for command in (
        ("data", "folder", "photos", f"--out={folder}", *options),
        ("new", "cifar10_quick", f"--data={folder}", f"--out={folder}_net", "--epochs=6"),
        ("train", "--solver", f"{folder}_net/solver.prototxt"),
    ):
        cli.ok(*command)


def files(cli: Cli, folder: str) -> tuple[str, str]:
    snapshots = (cli.folder / f"{folder}_net").glob("*.caffemodel")
    weights = max(snapshots, key=lambda path: int(path.stem.rpartition("_")[2]))
    return f"{folder}_net/deploy.prototxt", weights.relative_to(cli.folder).as_posix()


def held_out(cli: Cli, folder: str) -> list[tuple[str, int]]:
    """The photographs for validation with their labels, in the database's order."""
    lines = (cli.folder / folder / "val.txt").read_text().splitlines()
    return [(f"photos/{name}", int(at)) for name, _, at in (x.rpartition(" ") for x in lines)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Cli:
    """A folder with a net that was trained with photographs of which half lie on a side."""
    cli = Cli(tmp_path_factory.mktemp("trained"), fixtures)
    make_photos(cli.folder / "photos", 24, noise=110, exif=True)
    train(cli, "data", "--size=40")
    return cli


@pytest.mark.parametrize("options", [("--size=40",), ("--fit=squash", "--encode_type=jpg")])
def test_scores_are_those_of_test_to_the_bit(
    trained: Cli, tmp_path: Path, fixtures: Path, options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder, cli = "data", trained
    if options[0] != "--size=40":
        folder = "other"
        cli.ok("data", "folder", "photos", "--out=other", "--size=40", *options)
        shutil.copytree(cli.folder / "data_net", cli.folder / "other_net")
        shutil.copy(cli.folder / "other" / "photos.json", cli.folder / "other_net")
        text = (cli.folder / "data_net" / "train_val.prototxt").read_text()
        (cli.folder / "other_net" / "train_val.prototxt").write_text(
            text.replace("data/", "other/")
        )
    monkeypatch.chdir(cli.folder)
    deploy, weights = files(cli, folder)
    (batches,) = read_solver(f"{folder}_net/solver.prototxt").test_iter
    net = Net(read_net(f"{folder}_net/train_val.prototxt"), phase="TEST", backend=Cpu())
    model = read_weights(weights)
    net.load(model, weights)
    entered, scores = [], []
    for _ in range(batches):
        net.forward()
        entered.append(net.read("data"))
        scores.append(net.read("ip2"))
    classifier = Classifier(deploy, weights)
    trained_with = find_preprocessing(model, weights, "data")
    photos = make_entry(classifier.preprocess, trained_with, Path(deploy).parent)
    assert isinstance(photos, PhotoInput)
    found = [photos.enter(path, False) for path, _ in held_out(cli, folder)]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(entered)[: len(found)])
    logits = np.concatenate(scores)[: len(found)].astype(np.float64)
    wanted = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(classifier.score(found, oversample=False), wanted, atol=1e-6)


def test_the_command_scores_as_test_does(trained: Cli) -> None:
    deploy, weights = files(trained, "data")
    (batches,) = read_solver(trained.folder / "data_net" / "solver.prototxt").test_iter
    net = "data_net/train_val.prototxt"
    scored = trained.ok("test", "--model", net, "--weights", weights)
    assert f"Running for {batches} iterations" in scored.err
    accuracy = float(re.findall(r"\baccuracy = (\S+)", scored.err)[-1])
    names = held_out(trained, "data")
    done = trained.ok(
        "classify", "--model", deploy, "--weights", weights, "--top=1", *(name for name, _ in names)
    )
    labels = re.findall(r"^  \S+  (.+)$", done.out, re.MULTILINE)
    right = sum(name.split("/")[1] == each for (name, _), each in zip(names, labels, strict=True))
    assert right / len(names) == pytest.approx(accuracy, abs=1e-5)
    assert f"right: {right} of {len(names)} records" in scored.out
    assert 0.4 < accuracy <= 1
    how = "like those of data_net (crop, 40x40), of which the middle of 35x35"
    assert f"Photos are preprocessed {how}" in done.err
    assert "Names of classes: data_net/labels.txt" in done.err


def test_ten_parts_and_other_folders(trained: Cli, tmp_path: Path) -> None:
    deploy, weights = files(trained, "data")
    path, _ = held_out(trained, "data")[0]
    shutil.copy(trained.folder / deploy, tmp_path / "deploy.prototxt")
    common = ("--model", str(tmp_path / "deploy.prototxt"), "--weights", weights, path)
    ten = trained.ok("classify", *common, "--data=data", "--oversample")
    assert "Photos are preprocessed like those of data" in ten.err
    assert re.search(r"^  \S+  (bird|cat|dog)$", ten.out, re.MULTILINE)
    plain = trained("classify", *common)
    assert "Images are scaled to 40x40" in plain.err
    assert "class 0" in plain.out
    wrong = trained("classify", *common, "--data=photos")
    assert "--data photos: does not record how photographs were prepared" in wrong.err


def test_images_are_turned_as_exif_says(cli: Cli, root: Path, fixtures: Path) -> None:
    """A digit that lies on its side, of a net that no photographs trained."""
    from PIL import Image

    from osucaffe.data.databases.database import open_database
    from osucaffe.data.databases.datum import parse_datum, pixels

    database = open_database(fixtures / "formats" / "mnist200_lmdb")
    [(_, value)] = database.read(0, 1)
    digit = Image.fromarray(pixels(parse_datum(value))[0])
    digit.save(cli.folder / "upright.png")
    tags = Image.Exif()
    tags[0x0112] = 6
    digit.rotate(90).save(cli.folder / "lying.png", exif=tags)
    model = str(root / "models" / "lenet" / "deploy.prototxt")
    weights = str(fixtures / "formats" / "lenet_iter_200.caffemodel")
    done = cli.ok("classify", "--model", model, "--weights", weights, "upright.png", "lying.png")
    upright, lying = re.split(r"^lying\.png\n", done.out, flags=re.MULTILINE)
    assert upright.partition("\n")[2] == lying
