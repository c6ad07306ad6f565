"""Draw a net: layers as boxes, blobs as rounded ones.

  osucaffe draw train_val.prototxt net.png --rankdir TB --phase TRAIN

The picture's suffix says its format: .png, .svg, .pdf, or .dot for Graphviz's text.
Needs pip install "osucaffe[tools]" and Graphviz."""

from __future__ import annotations

import argparse

PHASES = {"ALL": None, "TRAIN": 0, "TEST": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("net", metavar="NET", help="the net's prototxt")
    parser.add_argument("picture", metavar="PICTURE", help="the file to write")
    parser.add_argument(
        "--rankdir",
        choices=("LR", "TB", "RL", "BT"),
        default="LR",
        help="which way it runs: left to right (default), top to bottom ...",
    )
    parser.add_argument(
        "--phase", choices=list(PHASES), default="ALL", help="only the layers of this phase"
    )
    parser.add_argument(
        "--display_lrm", action="store_true", help="show the multipliers of the learning rate"
    )


def run(args: argparse.Namespace) -> None:
    """Read, draw, write."""
    from ..proto import read_net
    from ..pycaffe.draw import draw_net_to_file

    net = read_net(args.net)
    draw_net_to_file(net, args.picture, args.rankdir, PHASES[args.phase], args.display_lrm)
    print(f"wrote {args.picture}")
