"""Owns the options of the commands about nets and model files."""

from __future__ import annotations

from .options import COUNT, EXTENT, Kind, Options, shape


def new(add: Options) -> None:
    """Write a net and its solver for your own photographs, ready to train.

      osucaffe new lenet                           a model's files, like osucaffe models copy
      osucaffe new cifar10_quick --data data       the same net for the classes in data, the output
                                                   of osucaffe data folder
      osucaffe new finetune --data data --from bvlc_googlenet.caffemodel
                                                   a pretrained net with a new last layer, for your
                                                   classes, that learns ten times as fast

    The files go to a folder of the same name, or to --out: train_val.prototxt, deploy.prototxt,
    solver.prototxt, and what classify needs. Which net the weights of --from belong to is found by
    the names of their layers, or from a train_val.prototxt or deploy.prototxt next to them;
    otherwise --model has to say it."""
    add("what", "a model of `osucaffe models`, or finetune", "WHAT")
    add("--data", "the output of osucaffe data folder", "DIR")
    add("--from", "a .caffemodel to fine-tune", "FILE", dest="weights")
    add("--model", "the net of --from: a model's name, or a prototxt", "NET")
    add("--out", "the folder to write to (default: WHAT)", "DIR")
    add("--batch", "batch size", COUNT, 32)
    add(
        "--augment",
        "let photographs vary more than by crops and mirroring: augmentation_param in the net, "
        "which other Caffes refuse",
    )
    add(
        "--epochs",
        "number of epochs (default: 60; finetune: 20, or those of 300 iterations if more)",
        COUNT,
    )


def models(add: Options) -> None:
    """List the model files that come with osucaffe, and copy them.

    osucaffe models                       list the models, and published weights
    osucaffe models copy lenet            copy its nets, solver and page to models/lenet
    osucaffe models copy lenet DIR        copy to another folder, with paths adapted
    osucaffe models check FILE            whether weights are a published file, and undamaged"""
    command = add.commands("action")
    copy = command("copy", "copy a model's files")
    copy("name", "the model, by its name in the list", "MODEL")
    copy("folder", "the folder to copy to (default: models/MODEL)", "DIR", nargs="?")
    check = command("check", "tell which published file a .caffemodel is")
    check("file", "a .caffemodel", "FILE")


def summary(add: Options) -> None:
    """Summarize a net: its layers, shapes, parameters, operations and memory.

      osucaffe summary models/lenet/train_val.prototxt
      osucaffe summary solver.prototxt                       the net that it trains
      osucaffe summary train_val.prototxt --shape 3,227,227  if its images are not here

    Operations are those of one batch, as in `osucaffe time`: a multiply-add counts as two.
    The backward column counts the gradients of data and weights."""
    add.net("the prototxt of a net, or of a solver")
    add.common("--phase", type=str.upper)
    add("--shape", "do not read any data: assume images of this shape", Kind("C,H,W", shape))
    add.common("--json")
    add.state()


def draw(add: Options) -> None:
    """Draw a net: layers as boxes, blobs as rounded ones.

      osucaffe draw train_val.prototxt net.png --rankdir TB --phase TRAIN

    Phases that differ are drawn separately, and deep nets in rows, one below the other.
    The file's suffix says its format: .png, .svg, .pdf, or .dot for Graphviz's text.
    Needs pip install "osucaffe[tools]" and Graphviz."""
    add.net()
    add("picture", "the file to write", "PICTURE")
    add(
        "--rankdir",
        "direction of the graph: left to right (LR, the default), top to bottom (TB) ...",
        ("LR", "TB", "RL", "BT"),
        "LR",
    )
    add(
        "--phase",
        "draw only this phase (default: both, separately where they differ)",
        ("ALL", "TRAIN", "TEST"),
        "ALL",
    )
    add("--display_lrm", "show the learning-rate multipliers")
    add(
        "--wrap",
        "start a new row after N layers; its input blobs are repeated, dashed (default: "
        "%(default)s; 0: one row)",
        EXTENT,
        10,
    )


def layers(add: Options) -> None:
    """List all layer types.

    Prints a line for each type, with the settings that it reads."""


def net_spec(add: Options) -> None:
    """Turn nets written in Python into prototxts.

      osucaffe net_spec net.py > net.prototxt    the NetSpec (or NetParameter) that net.py makes
      osucaffe net_spec net.py --object lenet    what its variable or function `lenet` gives

    The file is imported, not run as __main__."""
    add("net", "a Python file", "FILE")
    add("--object", "the variable or function in the file to use", "NAME")


def upgrade(add: Options) -> None:
    """Convert a net or solver of an older Caffe to today's format.

    A file's suffix says its format: .caffemodel and .binaryproto are binary, .h5 is HDF5, anything
    else is prototxt. Weights are kept.

      osucaffe upgrade net old.prototxt new.prototxt
      osucaffe upgrade net old.caffemodel new.caffemodel
      osucaffe upgrade solver solver.prototxt new_solver.prototxt"""
    add("kind", "what the file describes", ("net", "solver"))
    add("source", "the file to read", "IN")
    add("target", "the file to write", "OUT")


def export(add: Options) -> None:
    """Export a net with its weights for other programs, as an ONNX model.

      osucaffe export deploy.prototxt --weights trained.caffemodel --onnx net.onnx

    The net must be a deploy net, with Input layers. The model's metadata has the names of the
    classes, if labels.txt is next to the net, and what the input is to be, if the weights tell.
    Needs pip install "osucaffe[onnx]"."""
    add.net()
    add("--onnx", "the file to write", "FILE", required=True)
    add(
        "--with_preprocessing",
        "subtract the mean and scale in the graph: the input is bytes 0..255, blue first",
    )
    add.common("--weights", help="the trained model (default: as the fillers draw them)")
    add.common("--strict")
    add(
        "--batch",
        "the only batch size (default: any, or the net's where its layers depend on it)",
        COUNT,
    )
    add.state()
    add.parser.set_defaults(gpu=None, threads=None)


def snapshot(add: Options) -> None:
    """Check the files of snapshots.

      osucaffe snapshot verify run_iter_100.solverstate     a snapshot: its state, and its model
      osucaffe snapshot verify *.solverstate *.caffemodel   or models alone; .h5 files, too

    Each file is read completely and compared with the checksum that training wrote into it (files
    of other programs have none); a state and its model must belong to the same snapshot. The exit
    code is 1 if any file is bad."""
    command = add.commands("name", required=True)
    verify = command("verify", "read snapshots completely")
    verify("files", ".solverstate and .caffemodel files, also .h5", "FILE", nargs="+")
