"""The inputs by kind: what seeds there are, and input number i of a seed of randomness."""

from __future__ import annotations

import argparse
import io
import pickle
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import h5py
import lmdb
import numpy as np
from PIL import Image

from osucaffe import plugins
from osucaffe.cli.declare import declare
from osucaffe.data.databases.datum import make_datum
from osucaffe.layer import layer_types, messages_of
from osucaffe.proto import LayerParameter, NetParameter, SolverParameter, format_text, parse_text

from .mutate import STEERING, deepen, mutate_bytes, mutate_message, mutate_text, set_field

_NET = """layer { name: "d" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 }
  data_filler { type: "gaussian" std: 0.5 } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 2 }
  convolution_param { num_output: 4 kernel_size: 3 pad: 1 stride: 2 group: 1
  weight_filler { type: "xavier" } } }
layer { name: "norm" type: "LRN" bottom: "conv" top: "norm" lrn_param { local_size: 3 alpha: 0.1 } }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param {
  num_output: 3 weight_filler { type: "msra" } bias_filler { type: "constant" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
_BRANCHES = """name: "b" input: "x" input_shape { dim: 2 dim: 4 dim: 6 dim: 6 }
layer { name: "bn" type: "BatchNorm" bottom: "x" top: "bn" include { phase: TRAIN } }
layer { name: "s" type: "Scale" bottom: "x" top: "s" scale_param { axis: 1 bias_term: true } }
layer { name: "e" type: "Eltwise" bottom: "s" bottom: "x" top: "e" eltwise_param { coeff: 1
  coeff: -1 } }
layer { name: "r" type: "ReLU" bottom: "e" top: "e" relu_param { negative_slope: 0.1 } }
layer { name: "c" type: "Concat" bottom: "e" bottom: "x" top: "c" concat_param { axis: 1 } }
layer { name: "sl" type: "Slice" bottom: "c" top: "u" top: "v" slice_param { slice_point: 3 } }
layer { name: "up" type: "Deconvolution" bottom: "u" top: "up" convolution_param { num_output: 2
  kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 dilation: 1 } }
layer { name: "red" type: "Reduction" bottom: "up" top: "red" loss_weight: 1 }
"""
SOLVER_NET = _NET.replace("\n", " ")
_SOLVER = (
    'base_lr: 0.01 lr_policy: "%s" gamma: 0.5 power: 0.75 stepsize: 2 stepvalue: 2 stepvalue: 3 '
    'max_iter: 4 momentum: 0.9 weight_decay: 0.001 display: 1 type: "%s" clip_gradients: 10 '
    'iter_size: 2 random_seed: 3 average_loss: 2 regularization_type: "L1" '
    "rms_decay: 0.9 delta: 1e-6"
)
_SOLVERS = (("fixed", "SGD"), ("step", "Adam"), ("inv", "RMSProp"), ("poly", "Nesterov"),
            ("multistep", "AdaGrad"), ("sigmoid", "AdaDelta"), ("exp", "SGD"))  # fmt: skip
_WINDOWS = (
    "# 0\na.png\n3\n8\n8\n2\n1 0.9 0 0 5 5\n0 0.1 2 2 7 7\n# 1\na.jpg\n3\n8\n8\n1\n2 0.7 1 1 4 4\n"
)
_LISTS = ("a.png 0\na.jpg 1\n", "a.png\t3\r\n\r\nb c.png 2", "\ufeffa.png 1\n", "a.png 1 2 3 4\n")
_FORMS = (  # of lists: what reads each, in the order of the target's
    "a.png 0\na.jpg 1\n", "a.png a.png\na.jpg a.png\n", "frames 3 1\n", "rows.h5\nparts.h5\n",
    "# 0\na.png\n3 8 8\n1\n1 0 0 0 5 5\n1\n2 2 6 6\n", _WINDOWS,
)  # fmt: skip
_LOG = """Log file created at: 2026/11/29 03:00:00
Command: osucaffe train --solver s.prototxt
I1129 03:00:00.000000  4711 solver.py:1] Iteration 0, Testing net (#0)
I1129 03:00:00.100000  4711 report.py:1]     Test net output #0: accuracy = 0.125
I1129 03:00:01.000000  4711 solver.py:1] Iteration 0, loss = 2.3
I1129 03:00:01.000000  4711 report.py:1]     Train net output #0: loss = 2.3 (* 1 = 2.3 loss)
I1129 03:00:01.000000  4711 solver.py:1] Iteration 0, lr = 0.01
[0] I1129 03:00:10.000000  4711 solver.cpp:1] [0.0] Iteration 50 (25.0 iter/s), loss = 1.3
[0] I1129 03:00:10.000000  4711 solver.cpp:1] [0.0]     Train net output #0: a = b = -1.#IND
I1231 23:59:59.999999  4711 solver.py:1] Iteration 100 (2/s), lr = 1e-3
I0101 00:00:00.000000  4711 report.py:1]     Train net output #0: loss = 1.5e-5
"""
_SETTINGS = (
    "{'feat_stride': 16, 'num_classes': 3, 'scales': (8, 16, 32), 'ratios': [0.5, 1, 2.0]}",
    "'feat_stride': 16, 'num_classes': 2, 'rpn_min_size': 4, 'base_size': 16, 'rng_seed': 3, "
    "'rpn_nms_thresh': 0.7, 'bbox_inside_weights': [1, 1, 1, 1], 'rpn_clobber_positives': False",
    "64,48,16,0.6,3,0.02,22,1",
)
_VOC = """<annotation><folder>VOC</folder><filename>a.jpg</filename><size><width>8</width>
<height>8</height><depth>3</depth></size><object><name>cow</name><pose>Left</pose><difficult>0
</difficult><bndbox><xmin>1</xmin><ymin>2.5</ymin><xmax>5</xmax><ymax>7</ymax></bndbox></object>
</annotation>"""
_COCO = """{"categories": [{"id": 3, "name": "cow"}, {"id": 1, "name": "dog"}], "images": [{"id": 7,
"file_name": "a.jpg", "width": 8, "height": 8.5}], "annotations": [{"image_id": 7, "iscrowd": 0,
"category_id": 3, "bbox": [1, 2.5, 3, 4e0], "area": null}]}"""
_VALUES = (
    *("", "0", "1", "2", "-1", "nan", "1e99", "a,b", ",", "x" * 300, "9" * 30, "é", "\udc80", "--"),
    *(
        "n.prototxt",
        "s.prototxt",
        "w.caffemodel",
        "w.caffemodel.h5",
        "s.solverstate",
        "auto",
        "a.png",
    ),
    *("m.binaryproto", "small", "deep", "list.txt", "/dev/null", "nowhere/x", ".", "TEST", "all"),
)
_COMMANDS = (
    *("train", "test", "time", "classify", "extract_features", "upgrade", "layers", "net_spec"),
    *("export", "draw", "parse_log", "convert_imageset", "compute_image_mean", "convert_mnist"),
)
"""Those that stay in their folder."""
_SKIPPED = ("Python", "HDF5Output")

Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]


class Kind(NamedTuple):
    """Inputs of one kind: what each is made of, and how."""

    seeds: list[bytes]
    mutate: Mutation


def make_kinds(folder: Path) -> dict[str, Kind]:
    """Every kind by name. folder: where the files that they are made of are, and others come."""
    pictures = _pictures(folder)
    records = [make_datum(np.full((3, 8, 8), 7, np.uint8), 1), *map(_encoded, pictures)]
    weights = [_file(folder, name) for name in ("w.caffemodel", "w.caffemodel.h5")]
    states = [_file(folder, name) for name in ("s.solverstate", "s.solverstate.h5")]
    texts = [_NET.encode(), _BRANCHES.encode()]
    solvers = [(_SOLVER % each).encode() for each in _SOLVERS]
    lists = [text.encode() for text in _LISTS]
    return {
        "net": Kind(texts, mutate_text),
        "fields": Kind(texts, _mutate_fields),
        "layer": Kind([b""], _make_layer),
        "solver": Kind(solvers, mutate_text),
        "weights": Kind(weights[:1], mutate_bytes),
        "weights_h5": Kind([weights[1], _newer(folder, weights[1])], mutate_bytes),
        "state": Kind(states[:1], mutate_bytes),
        "state_h5": Kind([states[1], _newer(folder, states[1])], mutate_bytes),
        "lmdb": Kind(_databases(folder, records), _mutate_pages),
        "record": Kind(records, mutate_bytes),
        "image": Kind(pictures, mutate_bytes),
        "mean": Kind([_file(folder, "m.binaryproto")], mutate_bytes),
        "windows": Kind([_WINDOWS.encode()], mutate_text),
        "list": Kind(lists, mutate_text),
        "solver_fields": Kind(solvers, _mutate_solver),
        "opened": Kind([f"{n}\n{text}".encode() for n, text in enumerate(_FORMS)], mutate_text),
        "log": Kind([_LOG.encode()], _mutate_log),
        "param_str": Kind([text.encode() for text in _SETTINGS], mutate_text),
        "voc": Kind([_VOC.encode()], mutate_text),
        "coco": Kind([_COCO.encode()], mutate_text),
        "names": Kind(texts, _mutate_names),
        "deep": Kind(
            [
                b"%d\n%s" % each
                for each in enumerate(
                    [
                        _NET.encode(),
                        solvers[0],
                        _LOG.encode(),
                        _SETTINGS[1].encode(),
                        _VOC.encode(),
                        _COCO.encode(),
                        _LISTS[0].encode(),
                        _WINDOWS.encode(),
                    ]
                )
            ],
            _deepen,
        ),
        "data_h5": Kind([_file(folder, name) for name in ("rows.h5", "parts.h5")], mutate_bytes),
        "cifar": Kind(_pickles(), mutate_bytes),
        "flags": Kind([b""], _make_flags),
    }


def make_input(kind: Kind, name: str, seed: int, number: int) -> bytes:
    """Input `number` of a kind: it depends on the seed and the number only."""
    random = Random(f"{seed}/{name}/{number}")
    return kind.mutate(random, random.choice(kind.seeds), kind.seeds)


def _file(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


def _pictures(folder: Path) -> list[bytes]:
    pixels = np.random.default_rng(1).integers(0, 255, (8, 8, 3), np.uint8)
    found = []
    for form in ("png", "jpeg", "bmp", "gif", "tiff", "webp", "ppm", "tga"):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, form)
        found.append(stream.getvalue())
    (folder / "a.png").write_bytes(found[0])
    (folder / "a.jpg").write_bytes(found[1])
    (folder / "list.txt").write_text("a.png 0\na.jpg 1\n")
    with h5py.File(folder / "rows.h5", "w") as file:
        file["data"] = np.ones((5, 3), np.float32)
        file["label"] = np.arange(5.0)
    with h5py.File(folder / "parts.h5", "w") as file:
        parts = {"chunks": (2, 2), "compression": "gzip", "shuffle": True, "fletcher32": True}
        file.create_dataset("data", data=np.ones((5, 3), np.float32), **parts)
        file.create_dataset("label", data=np.arange(5.0), chunks=(2,), maxshape=(None,))
    return found


def _pickles() -> list[bytes]:
    """Files of CIFAR-10."""
    batch = {"data": np.zeros((2, 3072), np.uint8), "labels": [1, 9], "filenames": ["a", "b"]}
    return [pickle.dumps(batch, protocol=protocol) for protocol in (1, 2, 4, 5)]


def _newer(folder: Path, content: bytes) -> bytes:
    """The same HDF5 file in the format's newest form."""
    path = folder / "newer.h5"
    with (
        h5py.File(io.BytesIO(content), "r") as old,
        h5py.File(path, "w", libver="latest") as file,
    ):
        for name in old:
            old.copy(name, file)
    content = path.read_bytes()
    path.unlink()
    return content


def _encoded(picture: bytes) -> bytes:
    from osucaffe.proto import Datum

    return Datum(data=picture, encoded=True, label=1).SerializeToString()


def _databases(folder: Path, records: list[bytes]) -> list[bytes]:
    found = []
    for name, values in ("small", records), ("deep", records[:1] * 300):
        items = [(f"{number:08}".encode(), value) for number, value in enumerate(values)]
        if name == "small":
            items.append((b"zz", b"large" * 3000))
        with (
            lmdb.open(str(folder / name), map_size=1 << 22) as environment,
            environment.begin(write=True) as transaction,
        ):
            for key, value in items:
                transaction.put(key, value)
        found.append(_file(folder / name, "data.mdb"))
    return found


def _mutate_pages(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change headers of pages and nodes' offsets, which decide what is read, more than the rest."""
    data = bytearray(content)
    for _ in range(1 << random.randrange(3)):
        if random.random() < 0.3:
            data[:] = mutate_bytes(random, bytes(data), others)
        elif len(data) >= 4096:
            page = random.randrange(len(data) // 4096) * 4096
            at = page + 2 * random.randrange(80)
            struct.pack_into("<H", data, at, random.choice((0, 1, 2, 4, 16, 17, 4095, 4096, 65535,
                                                            random.randrange(65536))))  # fmt: skip
    return bytes(data)


def _mutate_fields(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    net = parse_text(content.decode(), NetParameter)
    mutate_message(random, net)
    return format_text(net).encode()


def _mutate_solver(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    solver = parse_text(content.decode(), SolverParameter)
    mutate_message(random, solver)
    return format_text(solver).encode()


def _mutate_log(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    if random.random() < 0.3:
        name = random.choice(STEERING).encode()
        content = content.replace(random.choice((b"loss", b"accuracy", b"a = b")), name)
    return mutate_text(random, content, others)


def _mutate_names(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Layers and blobs of other names: a blob's wherever it stands, so that most nets are good."""
    net = parse_text(content.decode(), NetParameter)
    names = {name: name + random.choice((*STEERING, "")) for layer in net.layer
             for name in (*layer.bottom, *layer.top)}  # fmt: skip
    net.input[:] = [names[name] for name in net.input]
    for layer in net.layer:
        layer.name += random.choice(STEERING)
        layer.bottom[:] = [names[name] for name in layer.bottom]
        layer.top[:] = [names[name] for name in layer.top]
    return format_text(net).encode()


def _deepen(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    head, _, text = content.partition(b"\n")
    return head + b"\n" + deepen(random, text, others)


def _make_layer(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """A net of one layer of any type, with any settings, on blobs of any shape."""
    types = layer_types()
    name = random.choice([each for each in types if each not in _SKIPPED])
    made = types[name]
    layer = LayerParameter(name="l", type=name)
    layer.bottom.extend(f"b{n}" for n in range(_count(random, made.bottoms)))
    layer.top.extend(f"t{n}" for n in range(_count(random, made.tops)))
    for field in messages_of(made):
        settings = getattr(layer, field)
        settings.SetInParent()
        for each in settings.DESCRIPTOR.fields:
            if random.random() < 0.35:
                set_field(random, settings, each, wildness=0.1)
    net = NetParameter()
    rank = random.choice((0, 1, 2, 3, 4, 4, 4, 4, 5))
    shape = [random.choice((1, 2, 3, 4, 8)) for _ in range(rank)]
    for bottom in layer.bottom:
        if random.random() < 0.3:
            shape = [random.choice((1, 2, 3, 4, 5, 8)) for _ in range(random.randrange(5))]
        filler = random.choice(("gaussian", "constant", "uniform"))
        fed = net.layer.add(name=f"in_{bottom}", type="DummyData", top=[bottom])
        fed.dummy_data_param.shape.add(dim=shape)
        fed.dummy_data_param.data_filler.add(type=filler, value=random.choice((0, 1, -1, 5, 1e9)))
    net.layer.append(layer)
    if layer.top and random.random() < 0.5:
        net.layer.add(name="red", type="Reduction", bottom=[layer.top[0]], top=["loss"],
                      loss_weight=[1])  # fmt: skip
    return format_text(net).encode()


def _count(random: Random, limits: tuple[int | None, int | None]) -> int:
    least, most = limits
    least = least or 0
    return random.randint(least, min(least + 3, most if most is not None else 9))


def _make_flags(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """A command line, a word a line: a command with what it needs, and some of its options."""
    name = random.choice(_COMMANDS)
    words = [name]
    for action in _options(name):
        if not action.option_strings:
            words += random.sample(_VALUES, random.choice((1, 1, 1, 1, 0, 2)))
        elif action.required or random.random() < 0.15:
            option = random.choice(action.option_strings)
            value = random.choice(_VALUES)
            if action.choices and random.random() < 0.7:
                value = str(random.choice(list(action.choices)))
            if option == "--iterations":  # of many it would rightly take its time
                value = value[:1]
            if option in ("--model", "--solver") and random.random() < 0.8:
                value = "s.prototxt" if "solver" in option else "n.prototxt"
            words += [option] if action.nargs == 0 else [option, value]
    if name == "time" and "--iterations" not in words:
        words += ["--iterations", "2"]
    if random.random() < 0.2:
        words.insert(
            random.randrange(len(words)), random.choice(("--", "-", "", "x.log", "--frob"))
        )
    return "\n".join(words).encode("utf-8", "surrogateescape")


@lru_cache
def _options(command: str) -> list[argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    declare(parser, plugins.find(plugins.COMMANDS, command))
    return parser._actions
