"""Owns `osucaffe upgrade`: nets and solvers of an older Caffe in today's format."""

from __future__ import annotations

import argparse
from pathlib import Path

from ... import proto


def run(args: argparse.Namespace) -> None:
    """Read, upgrade, write."""
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
