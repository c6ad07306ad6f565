"""Owns `osucaffe export`: a net with its weights as an ONNX model."""

from __future__ import annotations

import argparse

from ... import log
from ...files import write_bytes
from .. import options


def run(args: argparse.Namespace) -> None:
    """Build, load, write."""
    from ...export import OPSET, to_onnx

    log.start()
    net = options.load_net(args, reads=False, phase="TEST", inspectable=True, gradients=False)
    if args.batch:
        net.reshape({name: (args.batch, *net.blobs[name].shape[1:]) for name in net.inputs})
    model = to_onnx(net)
    write_bytes(args.onnx, model.SerializeToString())
    print(f"wrote {args.onnx}: {len(model.graph.node)} nodes, opset {OPSET}")
