"""The options of the commands that run a net forward."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...options.flags import argument, field_of, flag, like
from ...options.kinds import COUNT, Kind, names, positive
from .. import options as common
from ..options import NetOptions, SharedOptions

_WEIGHTS = field_of(NetOptions, "weights")


@dataclass(frozen=True, kw_only=True)
class Test(SharedOptions, NetOptions):
    """
      osucaffe test --model train_val.prototxt --weights trained.caffemodel

    The log has the outputs of each batch and, at its end, their means. For a net with a class for
    each record there is a table as well: precision (of those predicted as this class, the share
    that is right) and recall (the share of this class that is found). It counts each record once,
    even if the last batch begins again with the first records. For a net with a
    DetectionEvaluate layer (SSD) it has the average precision of each label, and their mean (mAP):

      osucaffe test --model test.prototxt --weights ssd.caffemodel --iterations 619 --detection"""

    weights: list[str] = like(_WEIGHTS, "the trained weights (several files: with commas)")
    iterations: int | None = flag(
        "number of batches (default: those that read each record, or 50 if their number is not "
        "known)",
        COUNT,
    )
    labels: str | None = like(
        common.LABELS, "names of the classes, one per line (default: labels.txt next to the data)"
    )
    predictions: str | None = flag("write a line for each record to a CSV file", "FILE")
    detection: bool = flag(
        "print the mean average precision; stop if the net has no layer that computes it"
    )
    results: str | None = flag(
        "write the detections to DIR, in the files that save_output_param describes", "DIR"
    )
    json: bool = like(common.JSON)
    log_dir: str | None = like(common.LOG_DIR)


@dataclass(frozen=True, kw_only=True)
class Time(NetOptions):
    """
      osucaffe time --model train_val.prototxt --iterations 50
      osucaffe time --model train_val.prototxt --gpu 0 --precision bf16

    A layer's time is the median over the iterations, after an untimed warm-up. On a GPU it is
    measured with CUDA events, without the gaps between launches; a layer that does nothing shows
    the time of an event, about 0.001 ms. Here layers run one after the other. The whole iteration,
    timed after them, overlaps weight gradients with the rest of backward, as training does.

    A layer's floor is the time its operations would take at the speed of a large matrix product, or
    its tensors at the speed of a large copy, whichever is longer; both speeds are measured first.
    Tensors that are in a cache may be faster than that.

    The lines after a layer's times name the library or kernel that computes its outputs, its data
    gradient and its weight gradient."""

    weights: list[str] = like(_WEIGHTS, "weights to load first (default: the fillers' random ones)")
    iterations: int = like(common.ITERATIONS)
    phase: str = like(common.PHASE)
    passes: bool = flag("print what each compiler pass did, and nothing else")
    json: bool = like(common.JSON)
    verify: bool = flag(
        "with --passes: verify the programs after each pass", environment="OSUCAFFE_VERIFY"
    )
    cluster: str | None = flag(
        "measure this device for osucaffe predict and study, write that into a cluster file, and "
        "nothing else: its rates, images per second of this net, and what is fixed (half_batch)",
        "FILE",
    )
    log_dir: str | None = like(common.LOG_DIR)


@dataclass(frozen=True, kw_only=True)
class ExtractFeatures(SharedOptions, NetOptions):
    """
      osucaffe extract_features trained.caffemodel net.prototxt fc7,prob fc7_lmdb,prob_lmdb 50

    The net reads its own data (by a Data layer, say) and runs in its TEST phase, here for 50
    batches. Record i, a Datum of floats under a key of ten digits, is what the blob holds for item
    i. As in Caffe, the kind of database (lmdb), CPU or GPU, and the GPU's number may follow."""

    weights: str = argument("the trained model", "WEIGHTS")  # type: ignore[assignment]
    model: str = argument("the net's prototxt", "NET")
    blobs: list[str] = argument("names of blobs, separated by commas", Kind("BLOBS", names))
    databases: list[str] = argument("an LMDB to write for each blob", Kind("LMDBS", names))
    batches: int = argument("how many batches to run", Kind("BATCHES", positive))
    kind: str | None = argument("the kind of database", ("lmdb",), metavar="lmdb", nargs="?")
    runs_on: str | None = argument("where it runs", ("CPU", "GPU"), metavar="CPU|GPU", nargs="?")
    device_id: str | None = argument("the number of the GPU (0 by default)", "DEVICE_ID", nargs="?")

    def __post_init__(self) -> None:
        if self.runs_on == "GPU" and self.device.gpu is None:  # as Caffe's program says it
            gpu = (self.device_id or "0").removeprefix("DEVICE_ID=")
            object.__setattr__(self, "device", replace(self.device, gpu=gpu))
