"""Draw a net: layers as boxes, blobs as rounded ones.

  osucaffe draw train_val.prototxt net.png --rankdir TB --phase TRAIN

Phases that differ are drawn separately, and deep nets in rows, one below the other.
The file's suffix says its format: .png, .svg, .pdf, or .dot for Graphviz's text.
Needs pip install "osucaffe[tools]" and Graphviz."""

from __future__ import annotations

import argparse

from .. import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("net", metavar="NET", help="the net's prototxt")
    parser.add_argument("picture", metavar="PICTURE", help="the file to write")
    parser.add_argument(
        "--rankdir",
        choices=("LR", "TB", "RL", "BT"),
        default="LR",
        help="direction of the graph: left to right (LR, the default), top to bottom (TB) ...",
    )
    parser.add_argument(
        "--phase",
        choices=("ALL", "TRAIN", "TEST"),
        default="ALL",
        help="draw only this phase (default: both, separately where they differ)",
    )
    parser.add_argument(
        "--display_lrm", action="store_true", help="show the learning-rate multipliers"
    )
    parser.add_argument(
        "--wrap",
        metavar="N",
        type=options.extent,
        default=10,
        help="start a new row after N layers; its input blobs are repeated, dashed (default: 10; "
        "0: one row)",
    )


def run(args: argparse.Namespace) -> None:
    """Read, draw, write."""
    from ...proto import read_net
    from .draw_rows import write_picture

    phases = ("TRAIN", "TEST") if args.phase == "ALL" else (args.phase,)
    net = read_net(args.net)
    write_picture(net, args.picture, args.rankdir, phases, args.wrap, lrm=args.display_lrm)
    print(f"wrote {args.picture}")
