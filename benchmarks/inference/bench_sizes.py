"""`make bench-sizes`: what a net costs that changes size in each pass.

ZF's Faster R-CNN sees photos of other sizes, and of each a Python layer proposes another number of
regions. Measured is the share of the processor time in which the net is built for other shapes.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe import pycaffe as caffe
from osucaffe.net import Net
from osucaffe.pycaffe import layers as L
from osucaffe.pycaffe import params as P

from .. import results

PASSES, SHORT, REGIONS = 80, 600, 300
SIDES = {333: 0.3, 334: 0.05, 335: 0.05, 357: 0.05, 374: 0.05, 375: 0.4, 376: 0.05, 500: 0.05}
"""How often the shorter sides of photos of 500 pixels occur, about as in PASCAL VOC."""

random = np.random.default_rng(1)


class Proposal(caffe.Layer):
    """Each time another number of regions."""

    def setup(self, bottom: Any, top: Any) -> None:
        top[0].reshape(1, 5)

    def reshape(self, bottom: Any, top: Any) -> None:
        pass

    def forward(self, bottom: Any, top: Any) -> None:
        top[0].reshape(int(random.integers(1, REGIONS + 1)), 5)
        top[0].data[...] = (0, 0, 0, 199, 149)


def detector() -> str:
    """The prototxt of ZF's Faster R-CNN, with the layer above for its proposals."""
    net = caffe.NetSpec()
    filler = {"type": "msra"}

    def convolution(bottom: Any, outputs: int, kernel: int, stride: int = 1) -> Any:
        return L.Convolution(
            bottom, num_output=outputs, kernel_size=kernel, stride=stride, pad=kernel // 2,
            weight_filler=filler,
        )  # fmt: skip

    net.data = x = L.Input(shape={"dim": [1, 3, SHORT, 800]})
    for outputs, kernel in (96, 7), (256, 5):
        x = L.ReLU(convolution(x, outputs, kernel, 2), in_place=True)
        x = L.LRN(x, local_size=3, alpha=0.00005, beta=0.75)
        x = L.Pooling(x, pool=P.Pooling.MAX, kernel_size=3, stride=2, pad=1)
    for outputs in 384, 384, 256:
        x = L.ReLU(convolution(x, outputs, 3), in_place=True)
    rpn = L.ReLU(convolution(x, 256, 3), in_place=True)
    net.rois = L.Python(
        convolution(rpn, 18, 1), convolution(rpn, 36, 1), module=__name__, layer="Proposal"
    )
    x = L.ROIPooling(x, net.rois, pooled_w=6, pooled_h=6, spatial_scale=1 / 16)
    for _ in range(2):
        x = L.ReLU(L.InnerProduct(x, num_output=4096, weight_filler=filler), in_place=True)
    net.prob = L.Softmax(L.InnerProduct(x, num_output=21, weight_filler=filler))
    net.boxes = L.InnerProduct(x, num_output=84, weight_filler=filler)
    return str(net.to_proto())


def measure() -> dict[str, Any]:
    """Seconds of processor time in all passes, and of these in building; how often it is built."""
    found = {"seconds": 0.0, "building": 0.0, "builds": 0}
    depth = 0

    def count(name: str) -> None:
        real = getattr(Net, name)

        def run(*args: Any, **options: Any) -> Any:
            nonlocal depth
            begin, depth = time.process_time(), depth + 1
            try:
                return real(*args, **options)
            finally:
                depth -= 1
                found["building"] += 0 if depth else time.process_time() - begin
                found["builds"] += name == "reshape"

        setattr(Net, name, run)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.prototxt"
        path.write_text(detector())
        net = caffe.Net(str(path), caffe.TEST)
    for name in "reshape", "ready", "complete":
        count(name)
    begin = time.process_time()
    for _ in range(PASSES):
        side = random.choice([*SIDES], p=[*SIDES.values()])
        image = random.permutation([SHORT, round(500 * SHORT / side)])
        net.blobs["data"].reshape(1, 3, *image)
        net.blobs["data"].data[...] = random.standard_normal((3, *image), np.float32)
        net.forward()
    found["seconds"] = time.process_time() - begin
    return found


def render(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    builds, seconds, building = (record[key] for key in ("builds", "seconds", "building"))
    row = builds, f"{seconds:.1f}", f"{building:.2f}", f"{building / seconds:.1%}"
    return f"""# Nets that change size in each pass

Written by `make bench-sizes` on {record["date"]}.

- {record["machine"]["cpu"]}, {record["machine"]["cores"]} cores

{results.table(("builds", "s in all", "s of them building", "share"), [row])}

- {PASSES} forward passes of ZF's Faster R-CNN through pycaffe: photos as large as those of PASCAL
  VOC, the shorter side {SHORT} pixels; a Python layer proposes 1 to {REGIONS} regions. Seconds are
  processor time; building is to set up, record, prepare and place layers for other shapes.
"""


def main() -> None:
    """Measure, write the results, print the table."""
    options = results.parser(__doc__).parse_args()
    record = results.begin(**measure())
    results.show("sizes-cpu", record, render(record), options.out)


if __name__ == "__main__":
    main()
