"""The shape of EDSR: writes the nets of models/edsr and models/edsr_baseline.

python models/edsr/make.py
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

COLOURS, SCALE, PATCH = 3, 2, 48
MEAN = (103.02, 111.46, 114.44)
"""Of DIV2K: blue, green, red."""


class Size(NamedTuple):
    """How large a net is; residual: what the blocks' results are multiplied by."""

    title: str
    blocks: int
    channels: int
    residual: float


SIZES = {
    "edsr": Size("EDSR", 32, 256, 0.1),
    "edsr_baseline": Size("EDSR baseline", 16, 64, 1),
}


def layer(name: str, kind: str, bottoms: list[str], top: str, *lines: str) -> str:
    """The text of a layer; lines: what it says besides, indented by two."""
    blobs = [*(f'bottom: "{bottom}"' for bottom in bottoms), f'top: "{top}"']
    inner = [f'name: "{name}"', f'type: "{kind}"', *blobs, *lines]
    return "\n".join(["layer {", *(f"  {line}" for line in inner), "}"])


def convolution(name: str, bottom: str, inputs: int, outputs: int) -> str:
    """A 3x3 convolution; its weights begin as PyTorch's, with which the published nets began."""
    bound = 1 / math.sqrt(9 * inputs)
    return layer(
        name, "Convolution", [bottom], name,
        "convolution_param {",
        f"  num_output: {outputs}",
        "  pad: 1",
        "  kernel_size: 3",
        f'  weight_filler {{ type: "uniform" min: {-bound:.5f} max: {bound:.5f} }}',
        "}",
    )  # fmt: skip


def body(size: Size) -> list[str]:
    """All layers from the small image to the large one, both less the mean colour."""
    n = size.channels
    sum_up = (
        [f"eltwise_param {{ operation: SUM coeff: 1 coeff: {size.residual:g} }}"]
        if size.residual != 1
        else []
    )
    layers, blob = [convolution("head", "data", COLOURS, n)], "head"
    for index in range(1, size.blocks + 1):
        name = f"block{index}"
        layers += [
            convolution(f"{name}_conv1", blob, n, n),
            layer(f"{name}_relu", "ReLU", [f"{name}_conv1"], f"{name}_conv1"),
            convolution(f"{name}_conv2", f"{name}_conv1", n, n),
            layer(name, "Eltwise", [blob, f"{name}_conv2"], name, *sum_up),
        ]
        blob = name
    shuffle = f"pixel_shuffle_param {{ upscale_factor: {SCALE} }}"
    return [
        *layers,
        convolution("body_conv", blob, n, n),
        layer("body", "Eltwise", ["head", "body_conv"], "body"),
        convolution("upscale_conv", "body", n, n * SCALE**2),
        layer("upscale", "PixelShuffle", ["upscale_conv"], "upscale", shuffle),
        convolution("output", "upscale", n, COLOURS),
    ]


def data(phase: str, part: str, batch: int, patch: int) -> str:
    """Patches of DIV2K: small ones for the net's input, large ones for what it should give."""
    return layer(
        "data", "PatchData", [], "data",
        'top: "label"',
        f"include {{ phase: {phase} }}",
        "transform_param {",
        *(f"  mean_value: {value:g}" for value in MEAN),
        "}",
        "patch_data_param {",
        f'  source: "data/div2k/{part}_lmdb"',
        f"  batch_size: {batch}",
        f"  scale: {SCALE}",
        f"  patch_size: {patch}",
        "}",
    )  # fmt: skip


def nets() -> dict[str, str]:
    """The text of each file by its path in models/."""
    files = {}
    for folder, size in SIZES.items():
        head = f"# {size.title}, twice as large: {{}}. By models/edsr/make.py."
        train_val = [
            head.format("training and testing") + f'\nname: "{size.title}"',
            data("TRAIN", "train", 16, PATCH),
            data("TEST", "valid", 2, 4 * PATCH),  # 50 times: the centres of 100 images
            *body(size),
            # The mean over pixels and colours, as PyTorch's L1Loss has it.
            layer(
                "loss", "L1Loss", ["output", "label"], "loss", "loss_param { normalization: FULL }"
            ),
        ]
        shape = f"shape {{ dim: 1 dim: {COLOURS} dim: {PATCH} dim: {PATCH} }}"
        deploy = [
            head.format("prediction") + f'\nname: "{size.title}"',
            layer("data", "Input", [], "data", f"input_param {{ {shape} }}"),
            *body(size),
        ]
        files[f"{folder}/train_val.prototxt"] = "\n\n".join(train_val) + "\n"
        files[f"{folder}/deploy.prototxt"] = "\n\n".join(deploy) + "\n"
    return files


if __name__ == "__main__":
    for path, text in nets().items():
        (Path(__file__).parents[1] / path).write_text(text)
