"""Convert a net or solver of an older Caffe to today's format.

A file's suffix says its format: .caffemodel and .binaryproto are binary, .h5 is HDF5, anything
else is prototxt. Weights are kept.

  osucaffe upgrade net old.prototxt new.prototxt
  osucaffe upgrade net old.caffemodel new.caffemodel
  osucaffe upgrade solver solver.prototxt new_solver.prototxt"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("kind", choices=("net", "solver"), help="what the file describes")
    parser.add_argument("source", metavar="IN", help="the file to read")
    parser.add_argument("target", metavar="OUT", help="the file to write")


def run(args: argparse.Namespace) -> None:
    """Read, upgrade, write."""
    from ... import proto

    if args.kind == "solver":
        message = proto.read_text(args.source, proto.caffe_pb2.SolverParameter)
        proto.write_text(args.target, proto.upgrade_solver(message))
    else:
        read, write = proto.read_net, proto.write_text
        net = (proto.read_model if _is_binary(args.source) else read)(args.source)
        (proto.write_weights if _is_binary(args.target) else write)(args.target, net)
    print(f"wrote {args.target}")


def _is_binary(path: str) -> bool:
    return Path(path).suffix in (".caffemodel", ".binaryproto", ".h5")
