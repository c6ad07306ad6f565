"""Owns the options of the commands that run a net forward."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...data.config import IGNORE_EXIF, ON_BAD_RECORD
from ...options.flags import REQUIRED, argument, field_of, flag, group, like
from ...options.kinds import COUNT, EXTENT, Kind, extents, integers, names, numbers, positive
from .. import options as common
from ..options import Device, NetOptions, SharedOptions

_WEIGHTS = field_of(NetOptions, "weights")


@dataclass(frozen=True, kw_only=True)
class Test(SharedOptions, NetOptions):
    """
      osucaffe test --model train_val.prototxt --weights trained.caffemodel

    The log has the outputs of each batch and, at its end, their means. For a net with a class for
    each record there is a table as well: precision (of those predicted as this class, the share
    that is right) and recall (the share of this class that is found). It counts each record once,
    even if the last batch begins anew with the first records. For a net with a
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
        "with --passes: verify the programs behind each pass", environment="OSUCAFFE_VERIFY"
    )
    cluster: str | None = flag(
        "measure this device for osucaffe predict and study, write that into a cluster file, and "
        "nothing else: its rates, images a second of this net, and what is fixed (half_batch)",
        "FILE",
    )
    log_dir: str | None = like(common.LOG_DIR)


@dataclass(frozen=True)
class Entry:
    """How images enter the net."""

    trained_with: str | None = flag(
        "the prototxt that the net was trained with (default: the one in the weights file)", "FILE"
    )
    mean: str | None = flag("a .binaryproto or .npy file, or values: 104,117,123; 0: none", "M")
    image_dims: list[int] | None = flag(
        "scale images to this size, then crop", Kind("H,W", extents)
    )
    oversample: bool = flag("average over ten crops")
    raw_scale: float | None = flag(
        "the value of white, before the mean is subtracted (default: 255)", Kind("X", float)
    )
    input_scale: float | None = flag(
        "factor applied after the mean is subtracted", Kind("X", float)
    )
    channel_swap: list[int] | None = flag(
        "the order of red, green and blue (0,1,2) in the channels (default: 2,1,0)",
        Kind("C", integers),
    )


@dataclass(frozen=True, kw_only=True)
class Classify(SharedOptions):
    """
      osucaffe classify --model deploy.prototxt --weights trained.caffemodel \\
          --mean imagenet_mean.binaryproto --labels synset_words.txt --picture cat.png cat.jpg

    Images are preprocessed as in training: channels in the order blue, green, red, values 0..255,
    minus the mean, times the scale, cropped to the middle. The transform_param of the data layer
    says which mean, scale and crop: that of the prototxt given by --trained_with, or else of the
    net stored in the weights file. Options override each of them (--raw_scale is applied before the
    mean, --input_scale after it), and the log says what was done. Nets with one input channel get
    grey images.

    For models that `osucaffe new` wrote, the files next to the model (or in --data) say how
    `osucaffe data folder` made the training records: photographs then get exactly the scores that
    `osucaffe test` gives them, and labels their names.

    For folders of thousands of images, --threads workers (by default one for each core) read and
    scale images ahead of the net; more than 4 are processes. They set the pace: a GPU keeps up with
    dozens of cores. --gpu all divides the images among all GPUs; --precision bf16 is faster than
    the default.

    Where images lie in folders with names of classes, a table at the end tells how many were
    classified correctly."""

    images: list[str] = argument("image files, or folders", "IMAGE", nargs="+")
    model: str = flag("the net's prototxt", "FILE", REQUIRED)
    weights: str = like(common.ONE_MODEL)
    labels: str | None = like(
        common.LABELS, "names of the classes, one per line (default: labels.txt next to the model)"
    )
    data: str | None = flag(
        "the output of osucaffe data folder that the net was trained on (default: what the "
        "files next to the model say)",
        "DIR",
    )
    top: int = flag("how many labels to print", COUNT, 5)
    picture: str | None = flag("draw the images with bars to a .png, .svg or .pdf file", "FILE")
    explain: str | None = flag(
        "write a picture for each image to DIR: red is what its best label hangs on, found by "
        "covering each part in turn",
        "DIR",
    )
    batch: int | None = flag(
        "images (or crops of them) in a batch (default: the model's; for larger folders at "
        "least 16, and 64 on a GPU)",
        COUNT,
    )
    json: bool = like(common.JSON)
    strict: bool = like(common.STRICT)
    skip_bad: bool = like(ON_BAD_RECORD)
    ignore_exif: bool = like(IGNORE_EXIF)
    no_python_layers: bool = like(common.NO_PYTHON_LAYERS)
    entry: Entry = group(
        Entry, "how images enter the net", "By default as in training, as far as that is known."
    )


@dataclass(frozen=True, kw_only=True)
class Upscale:
    """
      osucaffe upscale photo.jpg large.png --weights edsr_baseline.caffemodel
      osucaffe upscale photos large --weights edsr_baseline.caffemodel
      osucaffe upscale originals compared --weights edsr_baseline.caffemodel --score

    IN is an image or a folder of images of any size; OUT is the file to write, or a folder that
    gets files of the same names. JPEG, PNG and WebP can be written;
    transparency is kept (enlarged by bicubic interpolation), grey images stay grey, and colour
    profiles are kept. Images larger than --tile are enlarged tile by tile, with the same result.

    With --score, IN are originals: each is shrunk like the net's training data (MATLAB's
    antialiased bicubic), enlarged by the net, and compared with the original. The table has PSNR
    and SSIM (of the luma, without a border as wide as the factor), next to those of bicubic
    enlargement; OUT gets pictures side by side: small, bicubic, net, original.

    The net is that of models/edsr_baseline, which doubles the size, unless --model names another
    deploy net. The weights file says how images are preprocessed, unless --mean or --input_scale
    does."""

    input: str = argument("an image, or a folder of images", "IN")
    output: str = argument("the file or folder to write", "OUT")
    model: str | None = flag("the deploy prototxt (default: edsr_baseline's)", "FILE")
    weights: str = like(common.ONE_MODEL)
    scale: int | None = flag("stop if the net does not enlarge by this factor", COUNT)
    mean: list[float] | None = flag(
        "what is subtracted from bytes, 0 to 255, before they enter the net: one number, or three "
        "for blue, green and red (default: as the weights file says)",
        Kind("M", numbers),
    )
    input_scale: float | None = flag(
        "factor applied after that, 0.00392157 for nets of 0 to 1 (default: as the weights file "
        "says, or 1 with --mean)",
        Kind("X", float),
    )
    tile: int = flag(
        "width and height of the parts of the image that are enlarged at a time: smaller ones "
        "need less memory (default: %(default)s; 0: all at once)",
        EXTENT,
        512,
    )
    score: bool = flag("IN are original images: shrink and enlarge them, and print PSNR and SSIM")
    json: bool = like(common.JSON)
    strict: bool = like(common.STRICT)
    no_python_layers: bool = like(common.NO_PYTHON_LAYERS)
    device: Device = group(Device)


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
