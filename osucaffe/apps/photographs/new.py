"""`osucaffe new`: finds the net to begin with, and prints the next steps."""

from __future__ import annotations

from pathlib import Path

from ... import log
from ...data.sets.photo_set import open_photo_set
from ...errors import UserError, listed, naming
from ...proto import AnyWeights, NetParameter, read_net, read_solver, read_weights
from .adapt import classifiers, crop_of, for_prediction, learned_layers
from .catalogue import FOLDER, find_model, models, published
from .models import copy_model
from .new_files import Start, write_files
from .options import New

_NETS = ("train_val.prototxt", "deploy.prototxt")


def run(options: New) -> None:
    """Write the files, and print the next steps."""
    log.start()
    out = Path(options.out or options.what)
    tuned, photos = options.what == "finetune", options.data
    if tuned and not (photos and options.weights):
        raise UserError("finetune needs --data DIR, the photographs, and --from FILE, the weights")
    if not tuned and (options.weights or options.model or options.head):
        raise UserError("--from, --model and --head are for `osucaffe new finetune`")
    if not photos:
        _copy(options.what, out)
        return

    data = open_photo_set(photos)
    start = find_start(options)
    given = {name: getattr(options, name) for name in ("batch", "epochs", "augment", "head")}
    command = write_files(start, data, out, **given)
    print(
        f"{out}: a net for {len(data.classes)} classes, {data.train:,} photographs to train it "
        f"and {data.val:,} to test it; next:\n\n{command}"
    )


def find_start(options: New) -> Start:
    """What the new net is made from: a model, or what `finetune` is given."""
    if options.what == "finetune" and options.weights is not None:
        return _tuned(options.weights, options.model)
    return _afresh(options.what)


def _copy(name: str, folder: Path) -> None:
    """Copy a model unchanged, and print the commands of its page."""
    copy_model(name, folder)
    page = (folder / "README.md").read_text(encoding="utf-8")
    print(f"{folder}: the files of {name}; next, as {folder}/README.md says:\n")
    for block in page.split("```sh\n")[1:]:
        print(block.partition("```")[0].rstrip())


def _afresh(name: str) -> Start:
    """A model to train from scratch."""
    folder = find_model(name)
    net = read_net(folder / _NETS[0])
    _check(net, name)
    return Start(name, net, str(folder / _NETS[0]), crop_of(net), read_solver(folder / _SOLVER))


_SOLVER = "solver.prototxt"


def _tuned(file: str, model: str | None) -> Start:
    """The net of a file of weights, to fine-tune."""
    weights = read_weights(file)
    path = _find_net(file, model, weights)
    net = read_net(path)
    _check(net, str(path))
    if lacking := _lacking(net, weights):
        raise UserError(
            f"{path}: {file} has nothing for its layers {listed(lacking, 6)}: give "
            "the net that was trained, with --model"
        )
    deploy = path.parent / _NETS[1]
    native = crop_of(net)
    if not native and deploy.is_file():
        native = crop_of(read_net(deploy))
    solver_path = path.parent / _SOLVER  # how fast this net may learn
    solver = read_solver(solver_path) if solver_path.is_file() else None
    return Start("finetune", net, str(path), native, solver, (file, weights))


def _check(net: NetParameter, name: str) -> None:
    with naming(name):
        classifiers(net)
        for_prediction(net, (1, 3, 1, 1))


def _find_net(file: str, model: str | None, weights: AnyWeights) -> Path:
    """The prototxt of a net that these weights are for."""
    if model:
        given = Path(model)
        return given if given.is_file() else find_model(model) / _NETS[0]
    neighbours = [Path(file).parent / name for name in _NETS]
    fitting = [path for path in neighbours if path.is_file() and _fits(path, weights)]
    if fitting:
        return fitting[0]
    matches = [path for name in models() if _fits(path := FOLDER / name / _NETS[0], weights)]
    if len(matches) > 1:
        names = {each.model for each in published() if each.file == Path(file).name}
        matches = [path for path in matches if path.parent.name in names] or matches
    if len(matches) != 1:
        near = " or ".join(path.parent.name for path in matches)
        raise UserError(
            f"{file}: "
            + (f"may be of {near}" if matches else "no model of osucaffe has its layers")
            + ": name the net with --model, a model's name or a prototxt"
        )
    return matches[0]


def _fits(path: Path, weights: AnyWeights) -> bool:
    """Whether the file of a classification net has the layers of the weights, and no others that
    learn."""
    net = read_net(path)
    try:
        classifiers(net)
    except UserError:
        return False
    names = {layer.name for layer in net.layer}
    with_blobs = {layer.name for layer in weights.layer if layer.blobs}
    return with_blobs <= names and not _lacking(net, weights)


def _lacking(net: NetParameter, weights: AnyWeights) -> list[str]:
    """The learning layers that are missing from a file of weights."""
    known = {layer.name for layer in weights.layer if layer.blobs}
    return [name for name in learned_layers(net) if name not in known]
