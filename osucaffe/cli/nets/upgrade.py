"""`osucaffe upgrade`: nets and solvers of an older Caffe in today's format."""

from __future__ import annotations

from pathlib import Path

from ... import proto
from .options import Upgrade


def run(options: Upgrade) -> None:
    """Read, upgrade, write."""
    if options.kind == "solver":
        message = proto.read_text(options.source, proto.caffe_pb2.SolverParameter)
        proto.write_text(options.target, proto.upgrade_solver(message))
    else:
        read, write = proto.read_net, proto.write_text
        net = (proto.read_model if _is_binary(options.source) else read)(options.source)
        (proto.write_weights if _is_binary(options.target) else write)(options.target, net)
    print(f"wrote {options.target}")


def _is_binary(path: str) -> bool:
    return Path(path).suffix in (".caffemodel", ".binaryproto", ".h5")
