"""Export a net with its weights for other programs, as an ONNX model.

  osucaffe export deploy.prototxt --weights trained.caffemodel --onnx net.onnx

The net must be a deploy net, with Input layers. Needs pip install "osucaffe[onnx]"."""

from __future__ import annotations

import argparse

from .. import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="NET", help="the net's prototxt")
    parser.add_argument("--onnx", metavar="FILE", required=True, help="the file to write")
    options.add_weights(parser, "the trained model (default: as the fillers draw them)")
    options.add_strict(parser)
    parser.add_argument("--batch", type=options.positive, help="batch size (default: the net's)")
    options.add_state(parser)


def run(args: argparse.Namespace) -> None:
    """Build, load, write."""
    from ... import log
    from ...backends.cpu import Cpu
    from ...export import OPSET, to_onnx
    from ...files import write_bytes
    from ...net import Net
    from ...proto import read_net

    log.start()
    models = options.read_weights(args.weights)
    net = Net(
        read_net(args.model), phase="TEST", backend=Cpu(), level=args.level, stages=args.stage,
        inspectable=True, gradients=False,
    )  # fmt: skip
    if args.batch:
        net.reshape({name: (args.batch, *net.blobs[name].shape[1:]) for name in net.inputs})
    options.load_weights(net, models, args)
    model = to_onnx(net)
    write_bytes(args.onnx, model.SerializeToString())
    print(f"wrote {args.onnx}: {len(model.graph.node)} nodes, opset {OPSET}")
