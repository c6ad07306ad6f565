"""The shape of ResNet-50: writes train_val.prototxt and deploy.prototxt beside this file.

python models/resnet50/make.py
"""

from __future__ import annotations

from pathlib import Path

STAGES = {2: (3, 64), 3: (4, 128), 4: (6, 256), 5: (3, 512)}
"""Blocks and inner channels of each stage (He et al. 2016, table 1)."""


def layer(name: str, kind: str, bottoms: list[str], tops: list[str], *lines: str) -> str:
    """The text of a layer; lines: what it says besides, indented by two."""
    blobs = [f'bottom: "{bottom}"' for bottom in bottoms] + [f'top: "{top}"' for top in tops]
    inner = [f'name: "{name}"', f'type: "{kind}"', *blobs, *lines]
    return "\n".join(["layer {", *(f"  {line}" for line in inner), "}"])


def convolution(
    name: str, bottom: str, channels: int, kernel: int, stride: int = 1, bias: bool = False
) -> str:
    """A convolution that keeps the extent, or divides it by its stride."""
    return layer(
        name, "Convolution", [bottom], [name],
        "convolution_param {",
        f"  num_output: {channels}",
        *([f"  pad: {kernel // 2}"] if kernel > 1 else []),
        f"  kernel_size: {kernel}",
        f"  stride: {stride}",
        *([] if bias else ["  bias_term: false"]),
        '  weight_filler { type: "msra" }',
        "}",
    )  # fmt: skip


def normalization(suffix: str, blob: str) -> list[str]:
    """Batch normalization of a blob, then a scale and a bias for each channel, in place."""
    return [
        layer(f"bn{suffix}", "BatchNorm", [blob], [blob]),
        layer(f"scale{suffix}", "Scale", [blob], [blob], "scale_param { bias_term: true }"),
    ]


def relu(name: str, blob: str) -> str:
    """ReLU in place."""
    return layer(name, "ReLU", [blob], [blob])


def block(name: str, bottom: str, inner: int, stride: int, project: bool) -> list[str]:
    """1x1, 3x3 and 1x1 convolutions beside the identity, or beside a 1x1 projection."""
    layers, identity = [], bottom
    if project:
        identity = f"res{name}_branch1"
        layers += [
            convolution(identity, bottom, 4 * inner, 1, stride),
            *normalization(f"{name}_branch1", identity),
        ]
    # The stride stands in the first convolution, as in the paper.
    steps = (("a", inner, 1, stride), ("b", inner, 3, 1), ("c", 4 * inner, 1, 1))
    blob = bottom
    for letter, channels, kernel, step in steps:
        branch = f"{name}_branch2{letter}"
        layers += [
            convolution(f"res{branch}", blob, channels, kernel, step),
            *normalization(branch, f"res{branch}"),
        ]
        blob = f"res{branch}"
        if letter != "c":
            layers.append(relu(f"res{branch}_relu", blob))
    return [
        *layers,
        layer(f"res{name}", "Eltwise", [identity, blob], [f"res{name}"]),
        relu(f"res{name}_relu", f"res{name}"),
    ]


def body() -> list[str]:
    """All layers from the image to the scores of 1,000 classes."""
    layers = [
        # Its bias changes nothing before a normalization, but the published weights have it.
        convolution("conv1", "data", 64, 7, 2, bias=True),
        *normalization("_conv1", "conv1"),
        relu("conv1_relu", "conv1"),
        layer(
            "pool1", "Pooling", ["conv1"], ["pool1"],
            "pooling_param { pool: MAX kernel_size: 3 stride: 2 }",
        ),
    ]  # fmt: skip
    blob = "pool1"
    for stage, (blocks, inner) in STAGES.items():
        for index in range(blocks):
            name = f"{stage}{chr(ord('a') + index)}"
            stride = 2 if index == 0 and stage > 2 else 1
            layers += block(name, blob, inner, stride, project=index == 0)
            blob = f"res{name}"
    return [
        *layers,
        layer(
            "pool5", "Pooling", [blob], ["pool5"],
            "pooling_param { pool: AVE kernel_size: 7 stride: 1 }",
        ),
        layer(
            "fc1000", "InnerProduct", ["pool5"], ["fc1000"],
            "inner_product_param {",
            "  num_output: 1000",
            '  weight_filler { type: "msra" }',
            "}",
        ),
    ]  # fmt: skip


def data(phase: str, source: str, batch: int) -> str:
    """Images of ILSVRC 2012 from a database."""
    return layer(
        "data", "Data", [], ["data", "label"],
        f"include {{ phase: {phase} }}",
        "transform_param {",
        f"  mirror: {'true' if phase == 'TRAIN' else 'false'}",
        "  crop_size: 224",
        "  mean_value: 104",
        "  mean_value: 117",
        "  mean_value: 123",
        "}",
        "data_param {",
        f'  source: "data/ilsvrc12/ilsvrc12_{source}_lmdb"',
        f"  batch_size: {batch}",
        "  backend: LMDB",
        "}",
    )  # fmt: skip


def accuracy(name: str, *lines: str) -> str:
    """Accuracy in the test phase."""
    return layer(
        name, "Accuracy", ["fc1000", "label"], [name], "include { phase: TEST }", *lines
    )  # fmt: skip


def nets() -> dict[str, str]:
    """The two files by name."""
    train_val = [
        "# ResNet-50 for the 1,000 classes of ILSVRC 2012: training and testing. By make.py.\n"
        'name: "ResNet-50"',
        data("TRAIN", "train", 64),
        data("TEST", "val", 50),
        *body(),
        accuracy("top-1"),
        accuracy("top-5", "accuracy_param { top_k: 5 }"),
        layer("loss", "SoftmaxWithLoss", ["fc1000", "label"], ["loss"]),
    ]
    shape = "shape { dim: 1 dim: 3 dim: 224 dim: 224 }"
    deploy = [
        "# ResNet-50 for the 1,000 classes of ILSVRC 2012: prediction. By make.py.\n"
        'name: "ResNet-50"',
        layer("data", "Input", [], ["data"], f"input_param {{ {shape} }}"),
        *body(),
        layer("prob", "Softmax", ["fc1000"], ["prob"]),
    ]
    return {
        name: "\n\n".join(parts) + "\n"
        for name, parts in (("train_val.prototxt", train_val), ("deploy.prototxt", deploy))
    }


if __name__ == "__main__":
    for name, text in nets().items():
        Path(__file__).with_name(name).write_text(text)
