"""Runs the programs of docs/side-by-side.md, and writes the seconds that each takes to its result.

    python -m benchmarks.inference.bench_side_by_side WORK --mnist FOLDER [--tasks 1,2]

It needs PyTorch with torchvision, Keras, fastai and scikit-image in addition to osucaffe. No
weights are downloaded: random ones of ResNet-50 take the place of published ones, in each library's
own format, MNIST comes from IDX files (--mnist), and photographs are parts of those that
scikit-image has. Each program runs in a process of its own, with one thread; what is reported is
the processor time of it and of its workers, as others may use the machine, and the time that
passed.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = "osucaffe", "PyTorch", "Keras 3", "fastai"
PREPARE = {
    "osucaffe": """
import shutil
from pathlib import Path
import osucaffe as oc
net = oc.Net("models/resnet50/deploy.prototxt")
net.save("trained.caffemodel")
shutil.copy("trained.caffemodel", "resnet50.caffemodel")
shutil.copy("models/resnet50/deploy.prototxt", "deploy.prototxt")
Path("runs/fit1").mkdir(parents=True)
for name in ("deploy.prototxt", "trained.caffemodel"):
    shutil.copy(name, "runs/fit1")
Path("runs/fit1/labels.txt").write_text("\\n".join(f"class {at}" for at in range(1000)))
""",
    "PyTorch": """
import numpy as np
from pathlib import Path
from PIL import Image
from skimage import data
images = {"astronaut": data.astronaut(), "cat": data.chelsea()}
images |= {"coffee": data.coffee(), "rocket": data.rocket()}
rng = np.random.default_rng(0)
for name, image in images.items():
    folder = Path("photos") / name
    folder.mkdir(parents=True)
    for at in range(10):
        y, x = (rng.integers(0, extent - 240) for extent in image.shape[:2])
        Image.fromarray(image[y : y + 240, x : x + 240]).save(folder / f"{at}.jpg", quality=95)
Image.fromarray(images["cat"]).save("cat.jpg", quality=95)
import os
import torch
from torchvision.models import resnet50
folder = os.environ["TORCH_HOME"] + "/hub/checkpoints"
os.makedirs(folder)
torch.save(resnet50().state_dict(), folder + "/resnet50-11ad3fa6.pth")
""",
    "Keras 3": """
import json
import keras
for top in (True, False):
    keras.applications.ResNet50(weights=None, include_top=top).save_weights(f"top{top}.weights.h5")
index = {str(at): [f"n{at}", f"class {at}"] for at in range(1000)}
open("imagenet_class_index.json", "w").write(json.dumps(index))
""",
    "fastai": """
import numpy as np
from PIL import Image
from fastai.vision.all import *
data = ImageDataLoaders.from_folder("photos", valid_pct=0.2, item_tfms=Resize(224), bs=8)
vision_learner(data, resnet50, metrics=accuracy).export(Path("export.pkl").resolve())
digits = np.load("mnist.npz")
for part, name in (("train", "training"), ("test", "testing")):
    for at, (image, label) in enumerate(zip(digits[f"x_{part}"], digits[f"y_{part}"])):
        folder = Path("mnist_png") / name / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{at}.png")
""",
}
"""What makes the files that the programs of a library use."""
BEFORE = {
    "osucaffe": """
import sys
if TASK == 2:
    import numpy as np
    images = np.random.default_rng(0).normal(size=(8, 3, 224, 224))
if TASK == 3:
    from osucaffe.data.sets import mnist
    mnist.load.__defaults__ = ("files", "data/MNIST/raw")
    mnist.make.__kwdefaults__.update(source="files", files="data/MNIST/raw")
""",
    "PyTorch": """
if TASK == 2:
    import torch
    images = torch.randn(8, 3, 224, 224)
""",
    "Keras 3": """
if TASK == 2:
    import numpy as np
    images = np.random.default_rng(0).normal(size=(8, 224, 224, 3))
import keras
from keras.src.utils import file_utils
def local(fname, *_, **__):
    return fname if fname.endswith((".json", ".npz")) else f"top{'notop' not in fname}.weights.h5"
file_utils.get_file = local
import keras.src.datasets.mnist as mnist
mnist.get_file = local
""",
    "fastai": """
from fastai.vision.all import *
if TASK == 2:
    images = torch.randn(8, 3, 224, 224)
untar_data = lambda url: Path("mnist_png")
import fastai.vision.all
fastai.vision.all.untar_data = untar_data
""",
}
"""What stands for downloads, and `images`, before a program."""


def programs() -> list[tuple[str, list[str]]]:
    """Of each task its title, and the programs in the order of the libraries."""
    page = (ROOT / "docs" / "side-by-side.md").read_text()
    tasks = page.split("\n## ")[1:]
    return [
        (task.partition("\n")[0], re.findall(r"```python\n(.*?)```", task, re.DOTALL))
        for task in tasks
        if "```python" in task
    ]


def run(text: str, folder: Path, python: str = sys.executable) -> tuple[float, float]:
    """Processor seconds and seconds of a program."""
    (folder / "program.py").write_text(text)
    environment = os.environ | {
        "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "KERAS_BACKEND": "torch",
        "TORCH_HOME": str(folder / "hub"), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    with open(folder / "output.txt", "w") as output:
        done = subprocess.run(
            [python, "program.py"], cwd=folder, env=environment, stdout=output, stderr=output
        )
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{text}\nfailed:\n{(folder / 'output.txt').read_text()[-3000:]}")
    used = sum(getattr(after, each) - getattr(before, each) for each in ("ru_utime", "ru_stime"))
    return used, wall


def read_idx(path: Path, offset: int) -> np.ndarray:
    """The bytes of an IDX file behind its head."""
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=offset)


def prepare(work: Path, mnist: Path, pythons: dict[str, str]) -> None:
    """Make the files that the programs use."""
    raw = work / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for path in mnist.glob("*.gz"):
        (raw / path.name).write_bytes(path.read_bytes())
        (raw / path.stem).write_bytes(gzip.decompress(path.read_bytes()))  # torchvision wants both
    for name in ("lenet", "resnet50"):
        shutil.copytree(ROOT / "models" / name, work / "models" / name)
    arrays: dict[str, Any] = {}
    for part, name in (("train", "train"), ("test", "t10k")):
        images = read_idx(raw / f"{name}-images-idx3-ubyte.gz", 16)
        arrays[f"x_{part}"] = images.reshape(-1, 28, 28)
        arrays[f"y_{part}"] = read_idx(raw / f"{name}-labels-idx1-ubyte.gz", 8)
    np.savez(work / "mnist.npz", **arrays)
    for name in LIBRARIES:
        run(PREPARE[name], work, pythons[name])


def main() -> None:
    """Prepare, run, tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="a folder for files, which is made")
    parser.add_argument("--mnist", type=Path, required=True, help="the folder of its IDX files")
    parser.add_argument("--osucaffe", default=sys.executable, help="the Python that runs osucaffe")
    parser.add_argument("--tasks", default="1,2,3,4,5,6")
    parser.add_argument("--runs", type=int, default=1, help="of which the median is told")
    options = parser.parse_args()
    work = options.work.resolve()
    pythons = dict.fromkeys(LIBRARIES, sys.executable) | {"osucaffe": options.osucaffe}
    if not work.exists():
        prepare(work, options.mnist, pythons)
    for number in map(int, options.tasks.split(",")):
        title, texts = programs()[number - 1]
        for name, text in zip(LIBRARIES, texts, strict=True):
            times = []
            for _ in range(options.runs):
                for made in ("runs/tuned", "data/mnist"):
                    shutil.rmtree(work / made, ignore_errors=True)
                whole = f"TASK = {number}\n{BEFORE[name]}\n{text}"
                times.append(run(whole, work, pythons[name]))
            used, wall = (statistics.median(each) for each in zip(*times, strict=True))
            print(f"{title}: {name}: {used:.1f} s of a processor, {wall:.1f} s", flush=True)


if __name__ == "__main__":
    main()
