"""`make bench-ranks`: what several ranks on one GPU bring under MPS, by the trials of
`train --ranks_per_gpu auto`; each rank has the batch, which lies on the device.

More nets, or others: python -m benchmarks.communication.bench_ranks_per_gpu lenet alexnet; with
--gpu none the benchmark itself is tried on CPUs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from osucaffe.cli.launch import mps
from osucaffe.cli.launch.ranks_per_gpu import MAX_RANKS, Trial, attempt, find
from osucaffe.cli.launch.start import find_mpiexec
from osucaffe.proto import caffe_pb2, parse_text

from .. import nets, results
from ..training import gpu

BATCHES = {"lenet": 64, "cifar10_quick": 100, "resnet18": 64, "alexnet": 64}
"""Of each rank, by net."""
STAGES = (64, 128, 256, 512)
"""Channels of resnet18's, as He et al. (2016) have them, on images of 32 x 32."""


def resnet18(batch: int) -> caffe_pb2.NetParameter:
    """Four stages of two blocks of two 3x3 convolutions."""

    def convolution(name: str, bottom: str, channels: int, kernel: int, stride: int) -> str:
        return f"""
          layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}"
            convolution_param {{ num_output: {channels} kernel_size: {kernel} stride: {stride}
              pad: {kernel // 2} bias_term: false weight_filler {{ type: "msra" }} }} }}
          layer {{ name: "{name}_norm" type: "BatchNorm" bottom: "{name}" top: "{name}" }}
          layer {{ name: "{name}_scale" type: "Scale" bottom: "{name}" top: "{name}"
            scale_param {{ bias_term: true }} }}"""

    def relu(blob: str) -> str:
        return f'layer {{ name: "{blob}_relu" type: "ReLU" bottom: "{blob}" top: "{blob}" }}'

    text = f"""name: "ResNet-18, 32x32" layer {{ name: "data" type: "Input" top: "data" top: "label"
      input_param {{ shape {{ dim: {batch} dim: 3 dim: 32 dim: 32 }} shape {{ dim: {batch} }} }} }}
      {convolution("first", "data", STAGES[0], 3, 1)} {relu("first")}"""
    bottom = "first"
    for stage, channels in enumerate(STAGES):
        for number in range(2):
            name, stride = f"s{stage}_{number}", 2 if stage and not number else 1
            text += convolution(f"{name}a", bottom, channels, 3, stride) + relu(f"{name}a")
            text += convolution(f"{name}b", f"{name}a", channels, 3, 1)
            if stride > 1:
                text += convolution(f"{name}p", bottom, channels, 1, stride)
                bottom = f"{name}p"
            text += f"""layer {{ name: "{name}" type: "Eltwise" bottom: "{name}b"
              bottom: "{bottom}" top: "{name}" }} {relu(name)}"""
            bottom = name
    text += f"""layer {{ name: "pool" type: "Pooling" bottom: "{bottom}" top: "pool"
        pooling_param {{ pool: AVE global_pooling: true }} }}
      layer {{ name: "score" type: "InnerProduct" bottom: "pool" top: "score"
        inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }} }}
      layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" }}"""
    return parse_text(text, caffe_pb2.NetParameter)


def write_solver(model: str, folder: Path) -> Path:
    """A solver of the net, whose batch is made once."""
    batch = BATCHES[model]
    net = resnet18(batch) if model == "resnet18" else nets.training_net(model, batch)
    for layer in net.layer:
        if layer.type == "Input":
            layer.type = "DummyData"
            layer.dummy_data_param.shape.extend(layer.input_param.shape)
            for value in (0.5, 3.0)[: len(layer.top)]:
                layer.dummy_data_param.data_filler.add(type="constant", value=value)
            layer.ClearField("input_param")
    (folder / f"{model}.prototxt").write_text(str(net))
    solver = folder / f"{model}_solver.prototxt"
    solver.write_text(
        f'net: "{folder}/{model}.prototxt" base_lr: 1e-4 lr_policy: "fixed" momentum: 0.9 '
        f'weight_decay: 0.0005 max_iter: 100 snapshot_prefix: "{folder}/{model}"'
    )
    return solver


def measure(
    model: str, folder: Path, service: mps.Service, flags: list[str], most: int
) -> dict[str, Any]:
    """The trials of a net, and what they choose."""
    train = ["-m", "osucaffe", "train", "--solver", str(write_solver(model, folder)), *flags]
    batch, trials = BATCHES[model], list[Trial]()

    def one(count: int) -> Trial:
        command = [sys.executable, *train]
        if count > 1:
            command = [find_mpiexec(count), "-n", str(count), *command]
        trials.append(attempt(command, count, service))
        print(f"{model}, {batch} images a rank, ranks: {trials[-1]}", flush=True)
        return trials[-1]

    chosen, line = find(one, service, most)
    print(line, flush=True)
    rates = {str(each.ranks): each.why or round(each.rate * batch) for each in trials}
    return {"net": model, "batch": batch, "images_per_second": rates, "chosen": chosen}


def rows(cases: list[dict[str, Any]]) -> Iterator[list[Any]]:
    """A line of the table for each net."""
    for case in cases:
        rates = case["images_per_second"]
        cells = [rates.get(str(2**power), "") for power in range(5)]
        gain = rates[str(case["chosen"])] / rates["1"]
        shown = [f"{each:,}" if isinstance(each, int) else each and "fails" for each in cells]
        yield [case["net"], case["batch"], *shown, case["chosen"], f"{gain:.2f}"]


def render(record: dict[str, Any]) -> str:
    """The page of results."""
    columns = ["net", "batch", *(f"ranks: {2**power}" for power in range(5)), "chosen", "times"]
    return "\n".join(
        [
            f"# Several ranks on a GPU: {record['device']}, {record['date']}",
            "",
            f"Images per second of all ranks together, each with the batch, {record['precision']}; "
            f"more than one rank {record['service']}. `make bench-ranks` wrote this.",
            "",
            results.table(columns, list(rows(record["cases"]))),
            "",
        ]
    )


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", default=list(BATCHES), help=f"of {list(BATCHES)}")
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--most", type=int, default=MAX_RANKS, help="ranks to try")
    args = parser.parse_args()
    on_gpu = args.gpu != "none"
    flags = ["--gpu", args.gpu, "--precision", args.precision] if on_gpu else []
    with tempfile.TemporaryDirectory() as folder, mps.served() as service:
        cases = [measure(model, Path(folder), service, flags, args.most) for model in args.nets]
    record = {"date": results.today(), "precision": args.precision, "service": service.status}
    record |= gpu.versions() if on_gpu else {"device": results.machine()["cpu"]}
    record["cases"] = cases
    print(render(record))
    if on_gpu:
        device = results.slug(record["device"])
        print(results.write(f"ranks-{device}-{results.today()}", record, render(record)))


if __name__ == "__main__":
    main()
