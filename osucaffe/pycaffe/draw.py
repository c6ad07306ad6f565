"""Pictures of nets: boxes for layers, rounded ones for blobs, made by Graphviz."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import write_bytes
from ..graph.prototxt.filter import filter_layers, net_state
from ..proto import caffe_pb2, upgrade_net

_PHASES = ("TRAIN", "TEST")

# Okabe and Ito's colours, which colour-blind people can distinguish, lightened for black text.
_COLOURS = {
    "input": "#F3DD8F",
    "window": "#9FCBEA",  # convolution and its like
    "dense": "#8FD3BD",
    "pooling": "#F2C68B",
    "normalization": "#DDBBD0",
    "loss": "#EFA98A",
    "other": "#E6E6E6",
}
_FAMILIES = {
    "input": "Data DummyData HDF5Data ImageData Input MemoryData Parameter PatchData WindowData",
    "window": "Convolution Deconvolution Im2col",
    "dense": "InnerProduct Embed LSTM RNN",
    "pooling": "Pooling SPP",
    "normalization": "BatchNorm Bias LRN LayerNorm MVN Scale",
}
_FAMILY = {name: family for family, names in _FAMILIES.items() for name in names.split()}
_BLOB_COLOUR = "#FFFFFF"


def get_pooling_types_dict() -> dict[int, str]:
    """The names of the pooling methods by their numbers."""
    return {number: name for name, number in caffe_pb2.PoolingParameter.PoolMethod.items()}


def get_layer_label(layer: Any, rankdir: str, display_lrm: bool = False) -> str:
    """What the box of a layer says: name, type and what its windows are like.

    rankdir: where the net runs across (LR, RL), the parts stand one below the other.
    display_lrm: with the multipliers of the learning rate.
    """
    separator = " " if rankdir in ("TB", "BT") else "\n"
    parts = [layer.name, f"({layer.type})"]
    if layer.type in ("Convolution", "Deconvolution", "Im2col"):
        param = layer.convolution_param
        parts += [f"{name}: {value}" for name, value in _windows(param, dilation=True)]
    elif layer.type == "Pooling":
        pooling = layer.pooling_param
        parts[1] = f"({get_pooling_types_dict()[pooling.pool]} {layer.type})"
        if pooling.global_pooling:
            parts.append("global")
        else:
            parts += [f"{name}: {value}" for name, value in _windows(pooling)]
    if display_lrm and layer.param:
        multipliers = ", ".join(f"{param.lr_mult:g}" for param in layer.param)
        parts.append(f"lr_mult: {multipliers}")
    return separator.join(filter(None, parts))


def _windows(param: Any, dilation: bool = False) -> list[tuple[str, str]]:
    values = [
        ("kernel size", _extents(param, "kernel_size", "kernel", 1)),
        ("stride", _extents(param, "stride", "stride", 1)),
        ("pad", _extents(param, "pad", "pad", 0)),
    ]
    if dilation and any(extent != 1 for extent in param.dilation):
        values.append(("dilation", "x".join(map(str, param.dilation))))
    return values


def _extents(param: Any, field: str, prefix: str, default: int) -> str:
    """A window's extents: 3, or 3x5 where they differ between the axes."""
    if param.HasField(f"{prefix}_h") or param.HasField(f"{prefix}_w"):
        return f"{getattr(param, prefix + '_h')}x{getattr(param, prefix + '_w')}"
    value = getattr(param, field)
    extents = [value] if isinstance(value, int) else list(value) or [default]
    return "x".join(map(str, extents if len(set(extents)) > 1 else extents[:1]))


def get_edge_label(layer: Any) -> str:
    """What the arrow out of a layer says: how many outputs, or how large batches, it makes."""
    if layer.type == "Data":
        return f"Batch {layer.data_param.batch_size}"
    if layer.type in ("Convolution", "Deconvolution"):
        return str(layer.convolution_param.num_output)
    if layer.type == "InnerProduct":
        return str(layer.inner_product_param.num_output)
    return ""


def choose_color_by_layertype(layertype: str) -> str:
    """The colour of a layer's box, the same for its family."""
    family = "loss" if layertype.endswith("Loss") else _FAMILY.get(layertype, "other")
    return _COLOURS[family]


def get_pydot_graph(
    caffe_net: Any,
    rankdir: str,
    label_edges: bool = True,
    phase: int | None = None,
    display_lrm: bool = False,
) -> Any:
    """The net as a pydot graph.

    rankdir: LR, TB, BT or RL: which way the net runs. phase: only the layers of 0 (TRAIN) or 1
    (TEST). UserError without pydot.
    """
    graph = new_graph(caffe_net.name, rankdir)
    net = upgrade_net(caffe_net) if caffe_net.layers else caffe_net
    if phase is not None:
        net = filter_layers(net, net_state(net, _PHASES[phase]))
    add_layers(graph, net.layer, rankdir, label_edges=label_edges, display_lrm=display_lrm)
    return graph


def new_graph(name: str, rankdir: str) -> Any:
    """A graph without nodes. UserError without pydot."""
    try:
        import pydot
    except ImportError:
        raise UserError(
            'net pictures need pydot: pip install "osucaffe[tools]" (and Graphviz: its program dot)'
        ) from None
    graph = pydot.Dot(
        _quote(name or "net"),
        graph_type="digraph",
        rankdir=rankdir,
        nodesep="0.25",
        ranksep="0.35",
    )
    graph.set_node_defaults(fontname="Helvetica", fontsize="12", shape="box")
    graph.set_edge_defaults(fontname="Helvetica", fontsize="12", color="#555555")
    return graph


def add_layers(
    graph: Any,
    layers: Sequence[Any],
    rankdir: str,
    *,
    label_edges: bool = True,
    display_lrm: bool = False,
    prefix: str = "",
    known: Collection[str] = (),
) -> None:
    """Add layers and their blobs. prefix: of the nodes' names, which are to be its own. known:
    blobs that are drawn elsewhere, and repeated here."""
    import pydot

    made: set[str] = set()
    for index, layer in enumerate(layers):
        node = _quote(f"{prefix}layer{index}") if prefix else f"layer{index}"
        text = get_layer_label(layer, rankdir, display_lrm)
        colour = choose_color_by_layertype(layer.type)
        graph.add_node(_box(node, text, style="filled", color="#555555", fillcolor=colour))
        label = get_edge_label(layer) if label_edges else ""
        for blob in [*layer.bottom, *layer.top]:
            if blob not in made:
                made.add(blob)
                style = "filled,rounded,dashed" if blob in known else "filled,rounded"
                look = {"style": style, "color": "#999999", "fillcolor": _BLOB_COLOUR}
                graph.add_node(_box(_quote(f"{prefix}blob {blob}"), blob, **look))
        in_place = list(layer.bottom) == list(layer.top)
        for blob in layer.bottom:
            ends = "both" if in_place else "forward"
            graph.add_edge(pydot.Edge(_quote(f"{prefix}blob {blob}"), node, dir=ends))
        for blob in [] if in_place else layer.top:
            name = _quote(f"{prefix}blob {blob}")
            graph.add_edge(pydot.Edge(node, name, label=_quote(f" {label}")))


def draw_net(
    caffe_net: Any,
    rankdir: str,
    ext: str = "png",
    phase: int | None = None,
    display_lrm: bool = False,
) -> bytes:
    """The picture of a net as the bytes of a file: png, svg, pdf, or dot for Graphviz's text.

    UserError without pydot or Graphviz. For the rest see `get_pydot_graph`.
    """
    return render(get_pydot_graph(caffe_net, rankdir, phase=phase, display_lrm=display_lrm), ext)


def render(graph: Any, ext: str) -> bytes:
    """A graph as the bytes of a file of this kind. UserError without Graphviz."""
    text = str(graph.to_string()).encode()
    if ext in ("dot", "gv", "raw"):
        return text
    try:
        done = subprocess.run(["dot", f"-T{ext}"], input=text, capture_output=True, check=False)
    except FileNotFoundError:
        raise UserError(
            "net pictures need Graphviz, whose program dot was not found: install it (its package "
            "is called graphviz nearly everywhere), or write a .dot file"
        ) from None
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        raise UserError(f'Graphviz makes no picture of format "{ext}": {message}')
    return done.stdout


def draw_net_to_file(
    caffe_net: Any,
    filename: str,
    rankdir: str = "LR",
    phase: int | None = None,
    display_lrm: bool = False,
) -> None:
    """Write the picture of a net; the file's suffix says in which format. UserError."""
    suffix = Path(filename).suffix[1:]
    if not suffix:
        raise UserError(f"{filename}: give the picture a suffix: .png, .svg, .pdf or .dot")
    write_bytes(filename, draw_net(caffe_net, rankdir, suffix, phase, display_lrm))


def _box(name: str, label: str, **look: str) -> Any:
    """A node of the graph."""
    import pydot

    quoted: dict[str, Any] = {key: _quote(value) for key, value in look.items()}
    return pydot.Node(name, label=_quote(label), **quoted)


def _quote(text: str) -> str:
    """Text as a quoted string of Graphviz's language."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
