"""`osucaffe models`: what it lists stands in models/, and what it copies trains from there."""

from __future__ import annotations

import hashlib
from io import BytesIO
from pathlib import Path

import pytest

from osucaffe.apps.photographs import catalogue, models
from osucaffe.errors import UserError
from osucaffe.proto import read_net, read_solver
from tests.cli.conftest import ROOT, Cli


def test_the_list_has_every_model_and_what_their_pages_say(cli: Cli) -> None:
    known = catalogue.models()
    assert set(known) == {path.name for path in (ROOT / "models").iterdir() if path.is_dir()}
    for name, model in known.items():
        page = (ROOT / "models" / name / "README.md").read_text()
        assert f"| parameters | {model.parameters}" in page
        read_net(catalogue.FOLDER / name / "deploy.prototxt")
    done = cli.ok("models")
    lines = done.out.splitlines()
    assert lines[0].split()[0] == "lenet"
    assert "431,080  LeCun et al." in lines[0]
    assert [line.split()[0] for line in lines[: len(known)]] == list(known)


def test_published_weights_have_the_parameters_of_their_nets() -> None:
    extra = {
        "googlenet": 13_378_280 - 6_998_552,  # the auxiliary classifiers
        "resnet50": 53_173,  # statistics of batch normalization
    }
    found = [each for each in catalogue.published() if each.file.endswith(".caffemodel")]
    assert len(found) == 5
    for each in found:
        assert (len(each.sha1), len(each.sha256)) in ((40, 64), (40, 0), (0, 64))
        numbers = int(catalogue.models()[each.model].parameters.replace(",", ""))
        names = each.size - 4 * (numbers + extra.get(each.model, 0))
        assert 1000 < names < 50_000


def test_a_copy_names_its_own_files(cli: Cli) -> None:
    done = cli.ok("models", "copy", "lenet", "my/digits")
    assert "my/digits/solver.prototxt\n" in done.out
    solver = read_solver(cli.folder / "my" / "digits" / "solver.prototxt")
    assert solver.net == "my/digits/train_val.prototxt"
    assert (cli.folder / solver.net).is_file()
    assert solver.snapshot_prefix == "my/digits/lenet"
    done = cli.fails("models", "copy", "lenet", "my/digits")
    assert "my/digits/README.md: already exists" in done.err
    cli.ok("models", "copy", "resnet50")
    folder = cli.folder / "models" / "resnet50"
    assert {path.read_bytes() for path in folder.iterdir()} == {
        path.read_bytes()
        for path in (ROOT / "models" / "resnet50").iterdir()
        if path.suffix in (".prototxt", ".md", ".py")
    }
    assert "no model named 'lennet': did you mean lenet?" in cli("models", "copy", "lennet").err


def test_a_file_of_weights_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bvlc_alexnet.caffemodel"
    file.write_bytes(b"weights")
    with pytest.raises(UserError, match=r"7 bytes: no published file .* has 243,862,414$"):
        models._check(str(file))
    known = catalogue.published()[0]._replace(size=7)
    monkeypatch.setattr(models, "published", lambda: [known])
    with pytest.raises(UserError, match=r"has the size of bvlc_alexnet.* another checksum"):
        models._check(str(file))
    digest = hashlib.sha256(b"weights").hexdigest()
    monkeypatch.setattr(models, "published", lambda: [known._replace(sha256=digest)])
    assert ", whole; its net" in models._check(str(file))
    with pytest.raises(UserError, match=r"none: cannot read it: No such file"):
        models._check(str(tmp_path / "none"))


def test_a_file_of_another_size_is_not_said_to_have_the_size() -> None:
    assert "has another size than" in catalogue.damage(BytesIO(b"x"), catalogue.published()[0])
