"""osucaffe fit: what the single commands make, by one; where it stops."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from osucaffe.api.model import load
from osucaffe.apps.photographs import catalogue, fit
from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda.runtime import startup
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import read_net, read_solver, write_weights
from tests.cli.conftest import Cli
from tests.forked import python

from .photos import COLOURS, make_photos

pytest.importorskip("PIL")


@pytest.fixture(autouse=True)
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands are forks of a process that has their modules; nothing is fetched."""

    def get(name: str) -> Path:
        raise UserError(f"{name}: no network")

    monkeypatch.setattr(fit, "get", get)
    monkeypatch.setattr(fit.sys, "executable", python())


@pytest.mark.slow
def test_from_a_folder_to_a_report(cli: Cli, capfd: pytest.CaptureFixture[str]) -> None:
    make_photos(cli.folder / "photos", 12)
    cli.ok("fit", "photos", "--out=run", "--epochs=4", "--val_share=0.3")
    told = capfd.readouterr().out  # of the commands
    steps = ["data", "new", "train", "test", "report"]
    assert len(re.findall(r"right: \d+ of \d+ records", told)) == 1
    for name in ("data/train_lmdb", "deploy.prototxt", "predictions.csv", "report.html", "log"):
        assert (cli.folder / "run" / name).exists()
    solver = read_solver(cli.folder / "run" / "solver.prototxt")
    assert solver.snapshot > 0
    last = f"{solver.snapshot_prefix}_iter_{solver.max_iter}.caffemodel"
    assert (cli.folder / last).exists()
    page = (cli.folder / "run" / "report.html").read_text()
    assert all(name in page for name in COLOURS)
    again = cli.fails("fit", "photos", "--out=run")
    resume = "train --solver run/solver.prototxt --log_dir run/log --keep 1 --snapshot=auto"
    assert f"has a run: give another folder, or go on with osucaffe {resume}\n" in again.err
    (cli.folder / last.replace("caffemodel", "solverstate")).unlink()
    assert "--keep 1\n" in cli.fails("fit", "photos", "--out=run").err  # there is no snapshot
    # Fine-tuned from what it made; the printed commands are in their order.
    result = cli.ok("fit", "photos", "--out=tuned", "--epochs=1",
                    f"--from={last}")  # fmt: skip
    assert re.findall(r"^\$ osucaffe (\w+)", result.out, re.MULTILINE) == steps
    *_, last = result.out.split()
    assert last == "PHOTOS"


@pytest.mark.slow
def test_photographs_that_chose_nothing_come_first(cli: Cli) -> None:
    photos = make_photos(cli.folder / "photos", 12)
    for path in sorted(photos.rglob("*.*")):
        at = int(path.stem.split()[-1])
        part = ("train", "val", "test")[max(0, at - 9)]
        target = photos / part / path.parts[-3] / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    for name in COLOURS:
        (photos / name / "more").rmdir()
        (photos / name).rmdir()
    done = cli.ok("fit", "photos", "--out=run", "--epochs=1")
    assert "train_val.prototxt --weights run/" in done.out
    assert "--stage unseen --predictions run/predictions.csv" in done.out
    rows = (cli.folder / "run" / "predictions.csv").read_text().splitlines()[1:]
    assert sorted(row.split(",")[0] for row in rows) == sorted(
        path.relative_to(photos).as_posix() for path in photos.glob("test/*/*")
    )
    page = (cli.folder / "run" / "report.html").read_text()
    headings = re.findall("<h2>(.*?)[:<]", page)
    assert headings.index("Test, on records that had no part in training") < headings.index(
        "Validation"
    )
    assert page.count("of 3 records (95 % confidence: ") == 2


def test_without_a_network_it_begins_at_zero(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    make_photos(cli.folder / "photos", 3)
    monkeypatch.setattr(fit, "_call", lambda _: 3)
    told = cli("fit", "photos", "--out=run").err
    assert "begins at zero, without pretrained weights: efficientnet_lite0: no network" in told


@pytest.mark.parametrize("enough", [False, True])
def test_few_photographs_choose_no_model(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, enough: bool
) -> None:
    """By ten held-out ones nothing can be told: the last model is used, and training goes on to
    the end."""
    make_photos(cli.folder / "photos", 12)
    steps = []

    def call(words: list[str]) -> int:
        steps.append(words)
        if words[0] == "new":
            (cli.folder / "run").mkdir()
            cli.write("run/solver.prototxt", 'max_iter: 70 snapshot_prefix: "run/small"')
        return 0

    monkeypatch.setattr(fit, "_call", call)
    monkeypatch.setattr(fit, "_CHOOSE", 7 if enough else 8)
    result = cli.ok("fit", "photos", "--out=run")
    train, test, _ = steps[2:]
    assert ("--patience" in train) == ("--best" in train) == enough
    model = "run/small_best.caffemodel" if enough else "run/small_iter_70.caffemodel"
    assert test[test.index("--weights") + 1] == model
    assert f"--weights {model} PHOTOS" in result.out


@pytest.mark.slow
def test_it_begins_with_pretrained_weights_that_can_be_had(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose other layers stay as they are, without --gpu and --epochs."""
    make_photos(cli.folder / "photos", 8)
    net = read_net(catalogue.FOLDER / "cifar10_quick" / "deploy.prototxt")
    learned = Net(net, phase="TEST", backend=Cpu(), seed=3).to_proto()
    write_weights(cli.folder / "cached.caffemodel", learned)
    asked = []

    def get(name: str) -> Path:
        asked.append(name)
        return Path("cached.caffemodel")

    monkeypatch.setattr(fit, "get", get)
    done = cli.ok("fit", "photos", "--out=run")
    steps = re.findall(r"^\$ osucaffe (\w+)", done.out, re.MULTILINE)
    assert steps == ["data", "new", "test", "report"]
    assert "--from cached.caffemodel --head" in done.out
    assert done.out.count("--weights run/finetune_iter_0.caffemodel") == 3  # and how to go on
    assert load(cli.folder / "run").labels == list(COLOURS)
    resume = "train --solver run/solver.prototxt --log_dir run/log --keep 1 --weights run/finetune_"
    assert resume in cli.fails("fit", "photos", "--out=run").err

    called: list[list[str]] = []

    def call(words: list[str]) -> int:
        called.append(words)
        return len(called) // 2

    monkeypatch.setattr(fit, "_call", call)
    for option in "--from=none", "--from=lenet", "--model=lenet":
        called.clear()
        cli("fit", "photos", "--out=more", option)
        assert ("--head" in called[1]) == (option == "--from=lenet")
    assert asked == ["efficientnet_lite0", "efficientnet_lite0", "lenet"]


@pytest.mark.parametrize(
    ("model", "name"),
    [("resnet50", "top-1"), ("googlenet", "loss3/top-1"), ("cifar10_quick", "accuracy")],
)
def test_the_best_model_is_that_of_the_first_prediction(model: str, name: str) -> None:
    assert fit._accuracy(read_net(catalogue.FOLDER / model / "train_val.prototxt")) == name


def test_it_ends_with_the_first_command_that_fails(cli: Cli) -> None:
    folder = make_photos(cli.folder / "photos", 3)
    (folder / "cat" / "bad.png").write_bytes(b"no image")
    result = cli("fit", "photos", "--out=run")
    assert result.code == 1
    assert re.findall(r"^\$ osucaffe (\w+)", result.out, re.MULTILINE) == ["data"]
    for words, expected in (
        (("nowhere",), "nowhere: No such file"),
        (("photos", "--model=nonet"), "no model named 'nonet'"),
        (("photos", "--from=none.caffemodel"), "none.caffemodel: cannot read it"),
        (("photos", "--gpu=first"), "--gpu first: give a number"),
    ):
        assert expected in cli.fails("fit", "--out=run2", *words).err
    assert not (cli.folder / "run2").exists()


def test_a_gpu_that_is_not_there_is_told_of_first(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_photos(cli.folder / "photos", 3)

    def missing() -> None:
        raise UserError("no NVIDIA driver is there")

    monkeypatch.setattr(startup, "import_cupy", missing)
    assert "no NVIDIA driver" in cli.fails("fit", "photos", "--gpu=0", "--out=run2").err
    assert not (cli.folder / "run2").exists()


def test_photographs_are_as_large_as_they_are(tmp_path: Path) -> None:
    make_photos(tmp_path, 3)
    photos = sorted(tmp_path.rglob("a photo*"))
    assert fit._fitting(photos) == 64
    assert fit._fitting([tmp_path / "none.jpg"]) == 48
