"""`osucaffe fit`: from a folder of photographs to a tested model and its report, by the
commands that do each step."""

from __future__ import annotations

import logging
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np

from ... import log
from ...cli.train.snapshot_options import resuming
from ...data.sets.folder import images_in
from ...errors import UserError
from ...proto import NetParameter, read_solver
from ...solvers.snapshots.snapshot import best_model, listed, named
from .adapt import UNSEEN
from .catalogue import models
from .new import find_start
from .options import Fit, New
from .pretrained import get

_log = logging.getLogger("osucaffe")

_SMALL_NET, _LARGE_NET = "cifar10_quick", "resnet50"
_PRETRAINED = "efficientnet_lite0"
_MANY = 20_000
"""Photographs that are enough to train the large net from scratch, on a GPU."""
_SIZES = 48, 64
"""The least and the most that photographs are scaled to for the small net."""
_SAMPLE = 100
_CHOOSE = 200
"""Photographs held out that are enough to choose a model and a time to stop by: of fewer, the share
that is right is not known to 3 points, and the last model is better than the one with the best."""


def run(options: Fit) -> int:
    """Run the commands, each of which is printed. Returns the exit code of the first that fails."""
    log.start()
    gpus = [] if options.gpu is None else _usable_gpus(options.gpu)
    solver = Path(options.out) / "solver.prototxt"
    photos = images_in(Path(options.photos), log_others=False)
    many = options.gpu is not None and len(photos) >= _MANY
    weights = _weights(options)
    what = "finetune" if weights else options.model or (_SMALL_NET, _LARGE_NET)[many]
    start = find_start(New(what=what, weights=weights, model=options.model))
    size = options.size or (start.extent * 8 // 7 if start.extent else _fitting(photos))
    data, net = f"{options.out}/data", f"{options.out}/train_val.prototxt"
    gpu = ["--gpu", options.gpu] if options.gpu else []
    first = ["--gpu", gpus[0]] if gpus else []
    steps = [
        ["data", "folder", options.photos, "--out", data, "--size", str(size)],
        ["new", what, "--data", data, "--out", options.out, "--augment"],
        ["train", "--solver", str(solver), "--log_dir", f"{options.out}/log", *gpu],
    ]
    steps[0] += ["--on_bad_record", "skip" if options.skip_bad else "stop"]
    steps[0] += ["--val_share", str(options.val_share)]
    steps[0] += ["--balance"] if options.balance else []
    steps[1] += ["--from", weights, "--head"] if weights else []
    steps[1] += ["--model", options.model] if weights and options.model else []
    steps[1] += ["--epochs", str(options.epochs)] if options.epochs else []
    choose = len(photos) * options.val_share >= _CHOOSE
    steps[2] += ["--best", _accuracy(start.net), "--patience", "5"] if choose else []
    steps[2] += ["--keep", "1"]
    begun = f"{options.out}/finetune_iter_0.caffemodel"  # of --head, which not every net can have
    if solver.exists():
        steps[2] += _begin(weights, begun)
        there = listed(read_solver(str(solver)).snapshot_prefix)
        resume = shlex.join(["osucaffe", *(resuming(steps[2]) if there else steps[2])])
        raise UserError(
            f"--out {options.out}: has a run: give another folder, or go on with {resume}"
        )
    if code := _run(steps[:2]):
        return code
    param = read_solver(str(solver))
    # With the weights that are the default the other layers know enough to be left as they are
    # where it takes a minute to train them on a hundred photographs.
    frozen = bool(weights) and not (options.weights or options.gpu or options.epochs)
    steps[2] += _begin(weights, begun)
    training = shlex.join(["osucaffe", *steps[2]])
    if not frozen and (code := _run(steps[2:])):
        return code
    last = begun if frozen else named(param, param.max_iter).model
    model = best_model(param.snapshot_prefix) if choose and not frozen else last
    steps = [
        ["test", "--model", net, "--weights", model, *first],
        ["report", options.out, "--out", f"{options.out}/report.html", *first],
    ]
    if (Path(data) / "test_lmdb").exists():
        steps[0] += ["--stage", UNSEEN]
    steps[0] += ["--predictions", f"{options.out}/predictions.csv", "--quiet"]
    steps[1] += ["--quiet", *(["--passes", "0"] if frozen else [])]
    if code := _run(steps):
        return code
    use = ["classify", "--model", f"{options.out}/deploy.prototxt", "--weights", model, "PHOTOS"]
    print(f"\nnext:\n\n{shlex.join(['osucaffe', *use])}")
    if frozen:
        print(f"\nto train the other layers, too:\n\n{training}")
    return 0


def _accuracy(net: NetParameter) -> str:
    """The output of a net that is the share of its best predictions that is right."""
    tops = [
        layer.top[0]
        for layer in net.layer
        if layer.type == "Accuracy" and layer.accuracy_param.top_k == 1
    ]
    return tops[-1] if tops else "accuracy"  # which `new` adds


def _begin(weights: str | None, begun: str) -> list[str]:
    """What training is to begin with: with a last layer that has been trained, if there is one."""
    return ["--weights", begun if Path(begun).exists() else weights] if weights else []


def _weights(options: Fit) -> str | None:
    """The file of weights to begin with; None: at zero. UserError where those that are asked for
    cannot be had."""
    if options.weights == "none":
        return None
    if options.weights:
        known = options.weights in models() and not Path(options.weights).exists()
        return str(get(options.weights)) if known else options.weights
    if options.model:
        return None
    try:
        return str(get(_PRETRAINED))
    except UserError as error:
        _log.warning("Training begins at zero, without pretrained weights: %s", error)
        return None


def _usable_gpus(option: str) -> list[str]:
    """The GPUs of --gpu. UserError, before anything is written, where nothing can use them."""
    from ...backends.cuda.runtime.startup import import_cupy
    from ...cli.launch.start import gpu_numbers

    numbers = gpu_numbers(option)
    import_cupy()
    return numbers


def _run(steps: list[list[str]]) -> int:
    """Print and run commands. Returns the exit code of the first that fails, or 0."""
    for step in steps:
        print(f"\n$ {shlex.join(['osucaffe', *step])}", flush=True)
        if code := _call(step):
            return code
    return 0


def _call(words: list[str]) -> int:
    """Run a command; Ctrl-C is for it."""
    command = [sys.executable, "-P", "-m", "osucaffe", *words]
    with subprocess.Popen(command) as process:
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                continue
            return code if code >= 0 else 128 - code


def _fitting(photos: list[Path]) -> int:
    """The shorter side of most photographs, within what is worth while for the small net."""
    from PIL import Image

    sides = []
    for path in photos[:: -(-len(photos) // _SAMPLE)]:
        try:
            with Image.open(path) as image:
                sides.append(min(image.size))
        except Exception:  # data folder tells of a bad file
            continue
    return int(np.clip(np.median(sides or [0]), *_SIZES))
