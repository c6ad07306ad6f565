"""`oc.load`: a classifier with its labels and its preprocessing, which images are given to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..backends.cores import usable_cores
from ..data.pictures.preprocessing import Preprocessing, find_preprocessing
from ..errors import UserError
from ..loading import load_weights
from ..proto import read_weights
from ..pycaffe.image_input import ImageInput
from .entry import Image, make_entry
from .explain import Explainer
from .model_files import class_names, find_files
from .net import Net
from .tables import html_table

if TYPE_CHECKING:
    from PIL import Image as Pillow

BATCH = {"cpu": 16, "cuda": 64}
"""Images in a batch with which a net on each backend is about as fast as with any."""


class Prediction(NamedTuple):
    """The best label of an image and its score; the best labels with their scores; the scores of
    all classes."""

    label: str
    score: float
    top: list[tuple[str, float]]
    scores: np.ndarray

    def __repr__(self) -> str:
        return ", ".join(f"{label} {score:.4f}" for label, score in self.top)

    def _repr_html_(self) -> str:
        rows = ((label, f"{score:.4f}") for label, score in self.top)
        return html_table("<>", ("label", "score"), *rows)


class Model:
    """A net that classifies images, which enter it as they did in training.

    net: with one input. folder: that of its files, in which labels.txt has the names of the
    classes, and photos.json how photographs were prepared. trained: how images entered in
    training. It may be used by several threads.
    """

    def __init__(self, net: Net, folder: Path, trained: Preprocessing | None) -> None:
        if len(net.inputs) != 1 or not net.outputs:
            raise UserError(
                f"{folder}: a net that images are given to has one input and an output, such as a "
                "deploy.prototxt's"
            )
        self.net, self.folder, self.trained = net, folder, trained
        self._entry = make_entry(ImageInput(net.engine), trained, folder)
        shape = net.engine.blobs[net.outputs[0]].shape
        self.labels = class_names([folder / "-"], int(np.prod(shape[1:])))

    def predict(self, images: Any, *, top: int = 5, oversample: bool = False) -> Any:
        """The predictions for images: paths, arrays (height, width, channels) of bytes, red first,
        or Pillow's images, in a list or one array; or for a single one.

        oversample: the mean over ten parts of each image. UserError for what is not an image.
        """
        if not isinstance(images, list | tuple) and getattr(images, "ndim", 0) != 4:
            return self.predict([images], top=top, oversample=oversample)[0]
        scores = [row for rows in self._scores(images, oversample) for row in rows]
        return [self._prediction(row, top) for row in scores]

    def __reduce__(self) -> Any:
        return Model, (self.net, self.folder, self.trained)

    def explain(self, image: Any) -> Pillow.Image:
        """A picture: what enters the net, and in red what its best label hangs on."""
        with self.net.running():
            return self._explainer.picture(self._entry.enter(_as_image(image), False)[0])

    @cached_property
    def _explainer(self) -> Explainer:
        return Explainer(self.net.engine)

    def _scores(self, images: Sequence[Any], oversample: bool) -> Iterator[np.ndarray]:
        """Those of each batch: (images, classes)."""
        size = BATCH[self.net.engine.backend.name]
        (name,), output = self.net.inputs, self.net.outputs[0]

        def entered(image: Any) -> np.ndarray:
            return self._entry.enter(_as_image(image), oversample)

        with ThreadPoolExecutor(min(usable_cores(), max(1, len(images)))) as readers:
            for first in range(0, len(images), size):
                crops = list(readers.map(entered, images[first : first + size]))
                out = self.net(**{name: np.concatenate(crops)})[output]
                yield out.reshape(len(crops), len(crops[0]), -1).mean(axis=1)

    def _prediction(self, scores: np.ndarray, top: int) -> Prediction:
        best = np.argsort(-scores, kind="stable")[: max(1, top)]
        named = [(self.labels[at], float(scores[at])) for at in best]
        return Prediction(*named[0], named, scores)

    def __repr__(self) -> str:
        shown = ", ".join(self.labels[:5]) + (", ..." if len(self.labels) > 5 else "")
        return f'Model "{self.net.name}": {len(self.labels)} classes ({shown})'


def load(
    model: str | Path,
    weights: str | Path | None = None,
    *,
    gpu: int | None = None,
    precision: str | None = None,
    threads: int | None = None,
) -> Model:
    """A trained model: of a run's folder, of a folder with deploy.prototxt and weights, or of a
    prototxt and its weights. gpu, precision, threads: as of Net. UserError."""
    if weights is None:
        model, weights = find_files(Path(model))
    net = Net(Path(model), gpu=gpu, precision=precision, threads=threads)
    found = read_weights(weights)
    trained = find_preprocessing(found, weights, next(iter(net.inputs), ""))
    load_weights([net.engine], [(weights, found)])
    return Model(net, Path(model).parent, trained)


def _as_image(given: Any) -> Image:
    """A path, or pixels (height, width, channels)."""
    if isinstance(given, str | Path):
        return str(given)
    if hasattr(given, "getexif"):  # Pillow's
        from PIL import ImageOps

        given = ImageOps.exif_transpose(given)
        given = given if given.mode in ("L", "RGB", "RGBA") else given.convert("RGB")
    pixels = np.asarray(given)
    flat = pixels.ndim == 2
    if pixels.dtype != np.uint8 or not (flat or pixels.shape[2:] in ((1,), (3,), (4,))):
        raise UserError(
            f"{type(given).__name__} of {pixels.dtype} {pixels.shape}: not an image: give a path, "
            "a Pillow image, or bytes (height, width, 3), red first"
        )
    return pixels[:, :, None] if flat else pixels
