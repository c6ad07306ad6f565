"""The options of the commands about nets and model files."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...options.flags import REQUIRED, argument, commands, field_of, flag, group, like
from ...options.kinds import COUNT, EXTENT, Kind, shape
from ..options import JSON, MODEL, NO_PYTHON_LAYERS, PHASE, Device, NetOptions, State


@dataclass(frozen=True, kw_only=True)
class Summary:
    """
      osucaffe summary models/lenet/train_val.prototxt
      osucaffe summary solver.prototxt                       the net that it trains
      osucaffe summary train_val.prototxt --shape 3,227,227  if its images are not here

    Operations are those of one batch, as in `osucaffe time`: a multiply-add counts as two.
    The backward column counts the gradients of data and weights."""

    model: str = like(MODEL, "the prototxt of a net, or of a solver")
    phase: str = like(PHASE)
    shape: list[int] | None = flag(
        "do not read any data: assume images of this shape", Kind("C,H,W", shape)
    )
    json: bool = like(JSON)
    state: State = group(State)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """
      osucaffe draw train_val.prototxt net.png --rankdir TB --phase TRAIN

    Phases that differ are drawn separately, and deep nets in rows, one below the other.
    The file's suffix says its format: .png, .svg, .pdf, or .dot for Graphviz's text.
    Needs pip install "osucaffe[tools]" and Graphviz."""

    model: str = like(MODEL)
    picture: str = argument("the file to write", "PICTURE")
    rankdir: str = flag(
        "direction of the graph: left to right (LR, the default), top to bottom (TB) ...",
        ("LR", "TB", "RL", "BT"),
        "LR",
    )
    phase: str = flag(
        "draw only this phase (default: both, separately where they differ)",
        ("ALL", "TRAIN", "TEST"),
        "ALL",
    )
    display_lrm: bool = flag("show the learning-rate multipliers")
    wrap: int = flag(
        "start a new row after N layers; its input blobs are repeated, dashed (default: "
        "%(default)s; 0: one row)",
        EXTENT,
        10,
    )


@dataclass(frozen=True)
class Layers:
    """
    Prints a line for each type, with the settings that it reads."""


@dataclass(frozen=True, kw_only=True)
class NetSpec:
    """
      osucaffe net_spec net.py > net.prototxt    the NetSpec (or NetParameter) that net.py makes
      osucaffe net_spec net.py --object lenet    what its variable or function `lenet` gives

    The file is imported, not run as __main__."""

    net: str = argument("a Python file", "FILE")
    object: str | None = flag("the variable or function in the file to use", "NAME")
    no_python_layers: bool = like(NO_PYTHON_LAYERS)


@dataclass(frozen=True, kw_only=True)
class Upgrade:
    """
    A file's suffix says its format: .caffemodel and .binaryproto are binary, .h5 is HDF5, anything
    else is prototxt. Weights are kept.

      osucaffe upgrade net old.prototxt new.prototxt
      osucaffe upgrade net old.caffemodel new.caffemodel
      osucaffe upgrade solver solver.prototxt new_solver.prototxt"""

    kind: str = argument("what the file describes", ("net", "solver"))
    source: str = argument("the file to read", "IN")
    target: str = argument("the file to write", "OUT")


@dataclass(frozen=True, kw_only=True)
class Export(NetOptions):
    """
      osucaffe export deploy.prototxt --weights trained.caffemodel --onnx net.onnx

    The net must be a deploy net, with Input layers. The model's metadata has the names of the
    classes, if labels.txt is next to the net, and what the input is to be, if the weights tell.
    Needs pip install "osucaffe[onnx]"."""

    onnx: str = flag("the file to write", "FILE", REQUIRED)
    with_preprocessing: bool = flag(
        "subtract the mean and scale in the graph: the input is bytes 0..255, blue first"
    )
    weights: list[str] = like(
        field_of(NetOptions, "weights"), "the trained model (default: as the fillers draw them)"
    )
    batch: int | None = flag(
        "the only batch size (default: any, or the net's where its layers depend on it)", COUNT
    )
    device: Device = field(default=Device())


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Read snapshots completely."""

    files: list[str] = argument(".solverstate and .caffemodel files, also .h5", "FILE", nargs="+")


@dataclass(frozen=True)
class Snapshot:
    """
      osucaffe snapshot verify run_iter_100.solverstate     a snapshot: its state, and its model
      osucaffe snapshot verify *.solverstate *.caffemodel   or models alone; .h5 files, too

    Each file is read completely and compared with the checksum that training wrote into it (files
    of other programs have none); a state and its model must belong to the same snapshot. The exit
    code is 1 if any file is bad."""

    command: Verify = commands({"verify": Verify})
