"""Owns the picture that classify draws: images, each with its best labels as bars beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .. import plots

if TYPE_CHECKING:
    import numpy as np


def draw(
    paths: list[str],
    images: list[np.ndarray],
    shown: list[list[tuple[str, float]]],
    picture: str,
) -> None:
    """Draw each image with its best labels as bars beside it."""
    plt = plots.pyplot()
    figure, axes = plt.subplots(
        len(images),
        2,
        squeeze=False,
        figsize=(9, 0.4 + 2.6 * len(images)),
        width_ratios=[1, 1.5],
        layout="constrained",
    )
    for (left, right), path, image, best in zip(axes, paths, images, shown, strict=True):
        grey = image.shape[2] == 1
        left.imshow(image[:, :, 0] if grey else image, cmap="gray" if grey else None)
        left.set_title(Path(path).name, fontsize=10)
        left.axis("off")
        places = range(len(best))
        scores = [score for _, score in best]
        bars = right.barh(places, scores, color=plots.COLOURS[0], height=0.62)
        bars[0].set_color(plots.COLOURS[1])
        right.bar_label(bars, [f" {score:.3f}" for score in scores], fontsize=9)
        right.set_yticks(places, [_short(label) for label, _ in best], fontsize=9)
        right.invert_yaxis()
        right.set_xlim(min(0, *scores), max(1, *scores) * 1.12 if scores else 1)
        right.spines[["top", "right", "left"]].set_visible(False)
        right.tick_params(axis="y", length=0)
    plots.save(figure, picture)
    plt.close(figure)


def _short(label: str, most: int = 32) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"
