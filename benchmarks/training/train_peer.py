"""PyTorch's side of bench_train: a program that trains from an LMDB, as a careful user
writes it.

`python -m benchmarks.training.train_peer JOB` (JSON) trains and prints one JSON line: images a
second in the second half of the run, and the accuracy where it tests. The DataLoader's workers
return bytes; what is done with them (mean, scale, mirror) is done on the device; an iteration is a
captured graph where the job says so. "nvJPEG": they return JPEGs as they are, and torchvision
decodes each batch with the GPU's engines, in a thread with a stream of its own, two batches ahead.
With several GPUs it starts itself on each, as torchrun does, and trains by DDP.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lmdb
import numpy as np
import simplejpeg
import torch
from torch.utils.data import DataLoader, Dataset

from osucaffe.proto import caffe_pb2

from .. import nets
from ..built import DECAY, LEARNING_RATE, MOMENTUM
from ..peers.torch_peer import TorchPeer
from .gpu import captured

TEST_BATCH = 100
AHEAD = 3
"""Batches that nvJPEG decodes ahead: one is being decoded while two wait."""


class Records(Dataset[tuple[torch.Tensor, int]]):
    """The records of an LMDB as bytes, cropped; crop: the side, 0: whole images."""

    def __init__(self, path: str, crop: int, *, decodes: bool = True) -> None:
        self._path, self._crop, self._decodes = path, crop, decodes
        self._environment: Any = None
        with self._open().begin() as transaction:
            self._keys = list(transaction.cursor().iternext(values=False))
        self._environment = None  # each worker opens its own

    def _open(self) -> Any:
        if self._environment is None:
            self._environment = lmdb.open(self._path, readonly=True, lock=False)
        return self._environment

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with self._open().begin(buffers=True) as transaction:
            datum = caffe_pb2.Datum.FromString(transaction.get(self._keys[index]))
        if not self._decodes:
            return torch.frombuffer(bytearray(datum.data), dtype=torch.uint8), datum.label
        if datum.encoded:
            image = simplejpeg.decode_jpeg(datum.data, colorspace="BGR").transpose(2, 0, 1)
        else:
            shape = (datum.channels, datum.height, datum.width)
            image = np.frombuffer(datum.data, np.uint8).reshape(shape)
        if self._crop:
            top, left = np.random.randint(image.shape[1] - self._crop + 1, size=2)
            image = image[:, top : top + self._crop, left : left + self._crop]
        return torch.from_numpy(np.ascontiguousarray(image)), datum.label


def _joined(pairs: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, list[int], torch.Tensor]:
    """JPEGs one behind the other, their sizes, and the labels: one array to hand over, not many."""
    jpegs, labels = zip(*pairs, strict=True)
    return torch.cat(jpegs), [len(each) for each in jpegs], torch.tensor(labels)


class DecodedAhead:
    """Batches of a loader of JPEGs, decoded by nvJPEG and cropped on the device."""

    def __init__(self, loader: Any, crop: int) -> None:
        self._batches, self._crop = _forever(loader), crop
        self._stream = torch.cuda.Stream()
        self._thread = ThreadPoolExecutor(1)
        self._ahead = deque(self._thread.submit(self._decode) for _ in range(AHEAD))

    def _decode(self) -> tuple[torch.Tensor, torch.Tensor, torch.cuda.Event]:
        from torchvision.io import ImageReadMode, decode_jpeg

        joined, sizes, labels = next(self._batches)
        with torch.cuda.stream(self._stream):
            images = decode_jpeg(
                list(joined.split(sizes)), mode=ImageReadMode.RGB, device=torch.device("cuda")
            )
            room = [side - self._crop + 1 for side in images[0].shape[1:]]
            tops, lefts = (np.random.randint(each, size=len(images)) for each in room)
            batch = torch.stack([
                image[:, top : top + self._crop, left : left + self._crop]
                for image, top, left in zip(images, tops.tolist(), lefts.tolist(), strict=True)
            ])  # fmt: skip
            there = labels.to("cuda", non_blocking=True)
        done = torch.cuda.Event()
        done.record(self._stream)
        return batch, there, done

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch, labels, done = self._ahead.popleft().result()
        self._ahead.append(self._thread.submit(self._decode))
        current = torch.cuda.current_stream()
        current.wait_event(done)
        batch.record_stream(current)
        labels.record_stream(current)
        return batch, labels

    def close(self) -> None:
        """End the thread, when the batch at which it works is ready."""
        self._thread.shutdown(cancel_futures=True)


class Trainer:
    """A net, its input tensors, and an iteration on them."""

    def __init__(self, job: dict[str, Any], gpu: int | None) -> None:
        self.job = job
        self.device = torch.device("cpu" if gpu is None else f"cuda:{gpu}")
        net = nets.training_net(job["model"], job["batch"])
        self.peer = TorchPeer(net).to(self.device)
        if gpu is not None:
            self.peer = self.peer.to(memory_format=torch.channels_last)
        self.model: Any = self.peer
        if job["gpus"] > 1:
            self.model = torch.nn.parallel.DistributedDataParallel(self.peer, device_ids=[gpu])
        inputs = {
            top: tuple(shape.dim)
            for layer in net.layer
            for top, shape in zip(layer.top, layer.input_param.shape, strict=False)
        }
        (self.data, shape), (self.label, labels) = sorted(
            inputs.items(), key=lambda item: -len(item[1])
        )
        self.bytes = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        self.labels = torch.zeros(labels, dtype=torch.int64, device=self.device)
        mean = job["mean"]
        self.mean = torch.tensor(mean, device=self.device).view(1, -1, 1, 1) if mean else None
        self.optimizer = torch.optim.SGD(
            self.peer.parameter_groups(LEARNING_RATE, DECAY), lr=LEARNING_RATE, momentum=MOMENTUM,
            fused=gpu is not None,
        )  # fmt: skip
        self.loss = torch.zeros((), device=self.device)
        self.whole: tuple[torch.Tensor, torch.Tensor] | None = None
        if job["side"] == "resident":
            self._place_all()
        self.step = captured(self._train) if job["graph"] else self._train

    def _place_all(self) -> None:
        loader = DataLoader(Records(self.job["source"], 0), batch_size=1000)
        images, labels = zip(*loader, strict=True)
        self.whole = torch.cat(images).to(self.device), torch.cat(labels).to(self.device)

    def _inputs(self) -> dict[str, torch.Tensor]:
        images, labels = self.bytes, self.labels
        if self.whole:
            chosen = torch.randint(len(self.whole[1]), (len(labels),), device=self.device)
            images, labels = self.whole[0][chosen], self.whole[1][chosen]
        return {self.data: self.prepare(images), self.label: labels}

    def prepare(self, images: torch.Tensor) -> torch.Tensor:
        """Floats of images: mean, scale and mirror."""
        x = images.float()
        if self.mean is not None:
            x = x - self.mean
        if self.job["mirror"]:
            flip = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
            x = torch.where(flip, x.flip(3), x)
        x = x * self.job["scale"]
        if self.device.type == "cuda":
            x = x.contiguous(memory_format=torch.channels_last)
        return x

    def _train(self) -> None:
        self.optimizer.zero_grad(set_to_none=not self.job["graph"])
        half = self.job["precision"] == "bf16"
        kind = self.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=half, cache_enabled=False):
            loss = self.peer.loss(self.model(self._inputs()))
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())

    @torch.no_grad()
    def accuracy(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> float:
        """The share of images whose highest score is that of their label."""
        right = total = 0
        scores = self.peer.losses[0][0]
        bottom = next(s.bottom[0] for s in self.peer.specs if s.top[0] == scores)
        for images, labels in batches:
            images, labels = images.to(self.device), labels.to(self.device)
            blobs = self.peer({self.data: self.prepare(images), self.label: labels})
            right += (blobs[bottom].argmax(1) == labels).sum()
            total += len(labels)
        return float(right) / total


def _forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def train(job: dict[str, Any], rank: int) -> dict[str, Any]:
    """Run the job's iterations; images per second of this rank in the second half."""
    gpu = None if job["device"] == "cpu" else rank
    if gpu is not None:
        torch.cuda.set_device(gpu)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(rank)
    trainer = Trainer(job, gpu)
    source: Any = None
    if job["side"] != "resident":
        decodes = job["side"] == "loader"
        loader = DataLoader(
            Records(job["source"], job["crop"], decodes=decodes), batch_size=job["batch"],
            shuffle=True, num_workers=job["workers"], drop_last=True,
            collate_fn=None if decodes else _joined, pin_memory=decodes and gpu is not None,
            persistent_workers=job["workers"] > 0,
        )  # fmt: skip
        source = _forever(loader) if decodes else DecodedAhead(loader, job["crop"])
    tests = None
    if job["test_interval"]:
        tests = list(DataLoader(Records(job["test_source"], 0), batch_size=TEST_BATCH))
    half, begun = job["iterations"] // 2, 0.0
    tested = 0.0
    accuracy = None
    for iteration in range(job["iterations"]):
        if tests and iteration % job["test_interval"] == 0:
            start = time.perf_counter()
            accuracy = trainer.accuracy(iter(tests))
            tested += (time.perf_counter() - start) * (iteration > half)
        if iteration == half:
            if gpu is not None:
                torch.cuda.synchronize()
            begun = time.perf_counter()
        if source is not None:
            images, labels = next(source)
            trainer.bytes.copy_(images, non_blocking=True)
            trainer.labels.copy_(labels, non_blocking=True)
        trainer.step()
        if iteration % job["display"] == 0:
            trainer.loss.item()
    if gpu is not None:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begun - tested
    if source is not None:
        source.close()
    if tests:
        accuracy = trainer.accuracy(iter(tests))
    return {"rate": (job["iterations"] - half) * job["batch"] / seconds, "accuracy": accuracy}


def _rank(rank: int, job: dict[str, Any]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", rank=rank, world_size=job["gpus"])
    found = train(job, rank)
    if rank == 0:
        print(json.dumps(found | {"rate": found["rate"] * job["gpus"]}), flush=True)
    torch.distributed.destroy_process_group()


def main() -> None:
    """Train as the job says."""
    job = json.loads(sys.argv[1])
    # As in osucaffe: streams of one queue wait for each other, and nvJPEG for the training.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if job["gpus"] > 1:
        torch.multiprocessing.spawn(_rank, (job,), nprocs=job["gpus"])
    else:
        print(json.dumps(train(job, 0)), flush=True)


if __name__ == "__main__":
    main()
