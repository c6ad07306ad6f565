"""The shapes of EfficientNet-Lite0 to 2: writes their train_val.prototxt, deploy.prototxt and
solver.prototxt to this folder and those beside it.

python models/efficientnet_lite0/make.py
"""

from __future__ import annotations

import math
from pathlib import Path

STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320),
)  # fmt: skip
"""Blocks, kernel, stride, expansion and channels of each stage (Tan and Le 2019, table 1)."""
NETS = {0: (1.0, 1.0, 224, 0.2), 1: (1.0, 1.1, 240, 0.2), 2: (1.1, 1.2, 260, 0.3)}
"""Factors of width and depth, extent of the image, and dropout, of each net."""
STEM, HEAD = 32, 1280
"""Channels of the first and the last convolution, the same in all of them."""


def layer(name: str, kind: str, bottoms: list[str], tops: list[str], *lines: str) -> str:
    """The text of a layer; lines: what it says besides, indented by two."""
    blobs = [f'bottom: "{bottom}"' for bottom in bottoms] + [f'top: "{top}"' for top in tops]
    inner = [f'name: "{name}"', f'type: "{kind}"', *blobs, *lines]
    return "\n".join(["layer {", *(f"  {line}" for line in inner), "}"])


def convolution(
    name: str, bottom: str, channels: int, kernel: int = 1, stride: int = 1, *,
    extent: int = 1, depthwise: bool = False, active: bool = True,
) -> list[str]:  # fmt: skip
    """A convolution with its normalization and, where it is active, ReLU6, in place. extent: that
    of the image.

    TensorFlow's padding is one less before an image of even extent than behind it, where a stride
    is 2. The kernel is one wider there: with a first row and column of 0 it is the same.
    """
    wider = stride == 2 and extent % 2 == 0
    padding = [f"  pad: {kernel // 2}"] if kernel > 1 else []
    return [
        layer(
            name, "Convolution", [bottom], [name],
            "convolution_param {",
            f"  num_output: {channels}",
            *padding,
            f"  kernel_size: {kernel + wider}",
            *([f"  stride: {stride}"] if stride > 1 else []),
            *([f"  group: {channels}"] if depthwise else []),
            "  bias_term: false",
            '  weight_filler { type: "msra" variance_norm: FAN_OUT }',
            "}",
        ),
        layer(
            f"{name}_bn", "BatchNorm", [name], [name],
            "batch_norm_param { moving_average_fraction: 0.99 eps: 0.001 }",
        ),
        layer(f"{name}_scale", "Scale", [name], [name], "scale_param { bias_term: true }"),
        *([layer(f"{name}_relu6", "ReLU6", [name], [name])] if active else []),
    ]  # fmt: skip


def rounded(channels: float) -> int:
    """A multiple of 8, at most a tenth less."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 * (near < 0.9 * channels)


def body(width: float, depth: float, extent: int, dropout: float) -> list[str]:
    """All layers from the image to the scores of 1,000 classes."""
    layers = convolution("stem", "data", STEM, 3, 2, extent=extent)
    blob, inputs, number = "stem", STEM, 0
    extent = math.ceil(extent / 2)
    for stage, (blocks, kernel, first_stride, expansion, channels) in enumerate(STAGES):
        scaled = rounded(channels * width)
        ends = stage in (0, len(STAGES) - 1)  # which are not made deeper
        for index in range(blocks if ends else math.ceil(blocks * depth)):
            name, before, stride = f"block{number}", blob, 1 if index else first_stride
            inner = inputs * expansion
            if expansion > 1:
                layers += convolution(f"{name}_expand", blob, inner)
                blob = f"{name}_expand"
            layers += convolution(
                f"{name}_depthwise", blob, inner, kernel, stride, extent=extent, depthwise=True
            )
            layers += convolution(f"{name}_project", f"{name}_depthwise", scaled, active=False)
            blob = f"{name}_project"
            if stride == 1 and inputs == scaled:
                layers.append(layer(f"{name}_add", "Eltwise", [blob, before], [f"{name}_add"]))
                blob = f"{name}_add"
            extent, inputs, number = math.ceil(extent / stride), scaled, number + 1
    return [
        *layers,
        *convolution("head", blob, HEAD),
        layer(
            "pool", "Pooling", ["head"], ["pool"],
            "pooling_param { pool: AVE global_pooling: true }",
        ),
        layer(
            "dropout", "Dropout", ["pool"], ["pool"],
            f"dropout_param {{ dropout_ratio: {dropout} }}",
        ),
        layer(
            "fc", "InnerProduct", ["pool"], ["fc"],
            "inner_product_param {",
            "  num_output: 1000",
            '  weight_filler { type: "xavier" }',
            "}",
        ),
    ]  # fmt: skip


def data(phase: str, source: str, batch: int, extent: int) -> str:
    """Images of ILSVRC 2012 from a database."""
    return layer(
        "data", "Data", [], ["data", "label"],
        f"include {{ phase: {phase} }}",
        "transform_param {",
        f"  mirror: {'true' if phase == 'TRAIN' else 'false'}",
        f"  crop_size: {extent}",
        "  mean_value: 127",
        "  scale: 0.0078125",
        "}",
        "data_param {",
        f'  source: "data/ilsvrc12/ilsvrc12_{source}_lmdb"',
        f"  batch_size: {batch}",
        "  backend: LMDB",
        "}",
    )  # fmt: skip


def accuracy(name: str, *lines: str) -> str:
    """Accuracy in the test phase."""
    return layer(name, "Accuracy", ["fc", "label"], [name], "include { phase: TEST }", *lines)


def files(number: int) -> dict[str, str]:
    """The files of a net by name."""
    width, depth, extent, dropout = NETS[number]
    name, folder = f"EfficientNet-Lite{number}", f"models/efficientnet_lite{number}"
    layers = body(width, depth, extent, dropout)
    begin = f"# {name} for the 1,000 classes of ILSVRC 2012: {{}}. By make.py of Lite0.\n"
    train_val = [
        begin.format("training and testing") + f'name: "{name}"',
        data("TRAIN", "train", 64, extent),
        data("TEST", "val", 50, extent),
        *layers,
        accuracy("top-1"),
        accuracy("top-5", "accuracy_param { top_k: 5 }"),
        layer("loss", "SoftmaxWithLoss", ["fc", "label"], ["loss"]),
    ]
    shape = f"shape {{ dim: 1 dim: 3 dim: {extent} dim: {extent} }}"
    deploy = [
        begin.format("prediction") + f'name: "{name}"',
        layer("data", "Input", [], ["data"], f"input_param {{ {shape} }}"),
        *layers,
        layer("prob", "Softmax", ["fc"], ["prob"]),
    ]
    solver = [
        "# ILSVRC 2012: 120 epochs in batches of 256, four of 64.",
        f'net: "{folder}/train_val.prototxt"',
        "test_iter: 1000\ntest_interval: 5000\nbase_lr: 0.05\nlr_policy: \"poly\"\npower: 1",
        "momentum: 0.9\nweight_decay: 0.00004\niter_size: 4\ndisplay: 20\nmax_iter: 600000",
        f'snapshot: 10000\nsnapshot_prefix: "{folder}/efficientnet_lite{number}"',
    ]  # fmt: skip
    return {
        "train_val.prototxt": "\n\n".join(train_val) + "\n",
        "deploy.prototxt": "\n\n".join(deploy) + "\n",
        "solver.prototxt": "\n".join(solver) + "\n",
    }


if __name__ == "__main__":
    for number in NETS:
        folder = Path(__file__).parents[1] / f"efficientnet_lite{number}"
        for name, text in files(number).items():
            (folder / name).write_text(text)
