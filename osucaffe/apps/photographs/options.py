"""The options of the commands for those who have photographs."""

from __future__ import annotations

from dataclasses import dataclass

from ...cli import options as common
from ...cli.options import Device, SharedOptions
from ...data.config import IGNORE_EXIF, ON_BAD_RECORD, READERS
from ...options.flags import REQUIRED, argument, commands, flag, group, like
from ...options.kinds import COUNT, EXTENT, Kind, extents, integers

BALANCE = flag("repeat the photographs of small classes for training, up to ten times")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """
      osucaffe fit photos --out run
      osucaffe fit photos --out run --from bvlc_googlenet.caffemodel       fine-tune
      osucaffe fit photos --out run --from none                            begin at zero

    PHOTOS holds a folder of images for each class. Databases, net and solver, training with early
    stopping, test and report are made by the commands data folder, new, train, test and report,
    which are printed, and can be run again one by one. The net is EfficientNet-Lite0 with the
    weights that `osucaffe models get` fetches: its last layer is trained for your classes, and on a
    GPU or with --epochs then all layers. Where these weights cannot be had, with --from none or
    with --model alone training begins at zero: of a small net, with photographs scaled to 48 to 64
    pixels, or on a GPU with 20,000 photographs and more, of ResNet-50."""

    photos: str = argument("a folder that holds one folder of images per class", "PHOTOS")
    out: str = like(common.OUT, kind="RUN")
    model: str | None = flag("a model of `osucaffe models` to train, or the net of --from", "NET")
    weights: str | None = flag(
        "a .caffemodel to fine-tune, a model whose published weights it is to begin with (default: "
        "efficientnet_lite0), or none",
        "FILE",
        name="--from",
    )
    size: int | None = flag(
        "width and height of the stored images (default: as it suits the net)", COUNT
    )
    val_share: float = like(common.VAL_SHARE)
    balance: bool = like(BALANCE)
    epochs: int | None = flag("number of epochs (default: as of osucaffe new)", COUNT)
    skip_bad: bool = like(ON_BAD_RECORD)
    gpu: str | None = flag("the number of the GPU; several, or all (default: the CPU)", "ID")


@dataclass(frozen=True, kw_only=True)
class New:
    """
      osucaffe new lenet                           a model's files, like osucaffe models copy
      osucaffe new cifar10_quick --data data       the same net for the classes in data, the output
                                                   of osucaffe data folder
      osucaffe new finetune --data data --from bvlc_googlenet.caffemodel
                                                   a pretrained net with a new last layer, for your
                                                   classes, that learns ten times as fast

    The files go to a folder of the same name, or to --out: train_val.prototxt, deploy.prototxt,
    solver.prototxt, and what classify needs. Which net the weights of --from belong to is found by
    the names of their layers, or from a train_val.prototxt or deploy.prototxt next to them;
    otherwise --model has to say it."""

    what: str = argument("a model of `osucaffe models`, or finetune", "WHAT")
    data: str | None = flag("the output of osucaffe data folder", "DIR")
    weights: str | None = like(common.FROM)
    model: str | None = flag("the net of --from: a model's name, or a prototxt", "NET")
    out: str | None = flag("the folder to write to (default: WHAT)", "DIR")
    batch: int = flag("batch size", COUNT, 32)
    head: bool = flag(
        "finetune: also train the new last layer, on features that the others make of each "
        "photograph once: PREFIX_iter_0.caffemodel"
    )
    augment: bool = flag(
        "let photographs vary more than by crops and mirroring: augmentation_param in the net, "
        "which other Caffes refuse"
    )
    epochs: int | None = flag(
        "number of epochs (default: 60; finetune: 20, or those of 300 iterations if more)", COUNT
    )


@dataclass(frozen=True, kw_only=True)
class Copy:
    """Copy a model's files."""

    name: str = argument("the model, by its name in the list", "MODEL")
    folder: str | None = argument("the folder to copy to (default: models/MODEL)", "DIR", nargs="?")


@dataclass(frozen=True, kw_only=True)
class Get:
    """Fetch a model's published weights, unless they are in the cache, and print where they are."""

    name: str = argument("the model, by its name in the list", "MODEL")


@dataclass(frozen=True, kw_only=True)
class Check:
    """Tell which published file a .caffemodel is."""

    file: str = argument("a .caffemodel", "FILE")


@dataclass(frozen=True)
class Models:
    """
    osucaffe models                       list the models, and published weights
    osucaffe models copy lenet            copy its nets, solver and page to models/lenet
    osucaffe models copy lenet DIR        copy to another folder, with paths adapted
    osucaffe models get efficientnet_lite0       fetch its published weights to the cache
    osucaffe models check FILE            whether weights are a published file, and undamaged"""

    command: Copy | Get | Check | None = commands(
        {"copy": Copy, "get": Get, "check": Check}, required=False
    )


@dataclass(frozen=True, kw_only=True)
class Folder:
    """Make databases of photographs, a folder for each class."""

    photos: str = argument("a folder that holds one folder of images per class", "PHOTOS")
    out: str = like(common.OUT)
    val_share: float = like(common.VAL_SHARE)
    balance: bool = like(BALANCE)
    size: int = flag("width and height of the stored images", COUNT, 256)
    fit: str = flag(
        "how to make images square: keep the middle (crop, the default) or distort (squash)",
        ("crop", "squash"),
        "crop",
    )
    encode_type: str = like(common.ENCODE_TYPE)
    readers: int | None = like(READERS)
    skip_bad: bool = like(ON_BAD_RECORD)


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
        "write a picture for each image to DIR: red marks the regions that its top label depends "
        "on, found by covering each part in turn",
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
class Report:
    """
      osucaffe report solver.prototxt                    its best or newest model, on its test data
      osucaffe report FOLDER --log log --out page.html   that in a folder, and its log

    The page is a single HTML file without external resources. Its curves come from the log given by
    --log, or else from osucaffe.INFO next to the solver or in a folder log there (train --log_dir
    log writes it). Predictions are those of the first test net; names of classes come from
    --labels, or from labels.txt next to its data."""

    solver: str = argument("the solver's prototxt, or a folder with one", "RUN")
    out: str = like(common.PAGE, default="report.html")
    log: str | None = flag("the training log, or its folder", "FILE")
    weights: list[str] = like(
        common.WEIGHTS, "the model (default: PREFIX_best, or the newest snapshot)"
    )
    labels: str | None = like(common.LABELS)
    iterations: int | None = flag("number of test batches (default: test_iter)", COUNT)
    pictures: int = flag("how many best and worst predictions to show", COUNT, 12)
    passes: int = flag("how many passes to time (default: %(default)s; 0: no times)", EXTENT, 5)
    no_python_layers: bool = like(common.NO_PYTHON_LAYERS)
    device: Device = group(Device)
