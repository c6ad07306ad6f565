"""The options of the commands that make, inspect and check databases."""

from __future__ import annotations

from dataclasses import dataclass

from ...data.config import READERS
from ...options.flags import REQUIRED, argument, commands, field_of, flag, group, like
from ...options.kinds import COUNT, EXTENT, INTEGER
from ..options import BACKEND, ENCODE_TYPE, OUT, Reading

_TO_WRITE = "the LMDB to write; an existing one is replaced"


@dataclass(frozen=True, kw_only=True)
class Mnist:
    """Make the databases of MNIST."""

    out: str = like(OUT, default="data/mnist")
    files: str | None = flag("the folder of MNIST's files", "DIR")
    source: str = flag(
        "where to take MNIST from (default: auto, the first that is available)",
        ("auto", "files", "download", "packaged"),
        "auto",
    )


@dataclass(frozen=True, kw_only=True)
class Cifar10:
    """Make the databases of cifar10."""

    files: str = flag(
        "a folder to which its archive was unpacked, binary or Python version", "DIR", REQUIRED
    )
    out: str = flag("where to", "DIR", "data/cifar10")


@dataclass(frozen=True, kw_only=True)
class FashionMnist:
    """Make the databases of fashion_mnist."""

    files: str = flag(
        "a folder with its four files, which have the names of MNIST's, plain or .gz",
        "DIR",
        REQUIRED,
    )
    out: str = like(field_of(Cifar10, "out"), default="data/fashion_mnist")


@dataclass(frozen=True, kw_only=True)
class Annotated:
    """Make a database of images with boxes."""

    output: str = argument("the database to write", "LMDB")
    voc: list[str] | None = flag("a PASCAL VOC folder (may be repeated)", "DIR", action="append")
    split: str = flag("VOC's split", "SPLIT", "trainval")
    coco: str | None = flag("a COCO annotation file", "FILE")
    images: str | None = flag("the folder of COCO's images", "DIR")
    labels: str | None = flag("a label map for VOC (default: VOC's 20 classes)", "FILE")
    readers: int | None = like(READERS)


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Convert a LevelDB to an LMDB."""

    input: str = argument("the database to read, LevelDB or LMDB", "LEVELDB")
    output: str = argument("the LMDB to write", "LMDB")


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """Tell what an LMDB holds."""

    input: str = argument("the database", "LMDB")
    sheet: str | None = flag("write a picture of some records (.png or .jpg)", "FILE")
    samples: int = flag("how many records to show", COUNT, 60)
    readers: int | None = like(READERS)


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Decode every record of LMDBs, and name the bad ones."""

    input: list[str] = argument("the databases", "LMDB", nargs="+")
    classes: int | None = flag("check that labels are 0 to N-1", COUNT)
    readers: int | None = like(READERS)


@dataclass(frozen=True)
class Data:
    """
      osucaffe data mnist                  mnist_train_lmdb and mnist_test_lmdb in data/mnist
      osucaffe data mnist --files FOLDER   from MNIST's four files, plain or .gz
      osucaffe data cifar10 --files FOLDER
                                           cifar10_{train,test}_lmdb and their mean in data/cifar10
      osucaffe data fashion_mnist --files FOLDER
                                           fashion_mnist_{train,test}_lmdb in data/fashion_mnist
      osucaffe data folder PHOTOS --out DIR
                                           from a folder of photographs for each class: LMDBs for
                                           training and validation, label names, mean, contact sheet
      osucaffe data annotated LMDB --voc FOLDER --split trainval
      osucaffe data annotated LMDB --coco FILE.json --images FOLDER
                                           images with boxes, for SSD; and LMDB.labelmap.prototxt
      osucaffe data convert LEVELDB LMDB   convert a LevelDB to an LMDB
      osucaffe data inspect LMDB           tell what it holds; --sheet FILE.png: draw some records
      osucaffe data verify LMDB ...        decode all records, and name the bad ones

    Without --files, MNIST is downloaded from its public mirrors (and its checksums are verified);
    if that fails, a subset of 10,000 + 2,000 digits that comes with osucaffe is used."""

    command: Mnist | Cifar10 | FashionMnist | Annotated | Convert | Inspect | Verify = commands(
        {
            "mnist": Mnist, "cifar10": Cifar10, "fashion_mnist": FashionMnist,
            "annotated": Annotated, "convert": Convert, "inspect": Inspect, "verify": Verify,
        },
        prefix="data ",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ConvertImageset:
    """
      osucaffe convert_imageset --resize_height 256 --resize_width 256 --shuffle FOLDER/ LIST LMDB

    LIST has a line NAME LABEL for each image; each NAME gets the prefix FOLDER/."""

    root: str = argument("prefix of each name in the list", "FOLDER/")
    list: str = argument("a text file with lines NAME LABEL", "LIST")
    output: str = argument(_TO_WRITE, "LMDB")
    gray: bool = flag("write one channel instead of three")
    shuffle: bool = flag("write the images in random order")
    seed: int = flag("seed of that order", INTEGER, 1)
    backend: str = like(BACKEND)
    resize_width: int = flag("resize all images to this; 0: leave them as they are", EXTENT, 0)
    resize_height: int = like(resize_width)
    check_size: bool = flag("refuse images that differ in size")
    encoded: bool = flag("store the images compressed")
    encode_type: str = like(ENCODE_TYPE, "how to compress: jpg or png")
    reading: Reading = group(Reading, "")


@dataclass(frozen=True, kw_only=True)
class ComputeImageMean:
    """
      osucaffe compute_image_mean LMDB mean.binaryproto

    Prints the mean of each channel, for mean_value, and writes the mean image, if a file is given,
    for mean_file."""

    input: str = argument("the database", "LMDB")
    output: str | None = argument("where to write the mean", "FILE", nargs="?")
    backend: str = like(BACKEND)
    reading: Reading = group(Reading, "")


@dataclass(frozen=True, kw_only=True)
class ConvertMnist:
    """
      osucaffe convert_mnist train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz LMDB

    `osucaffe data mnist` makes both databases at once, and finds the files."""

    images: str = argument("the file of images, plain or .gz", "IMAGES")
    labels: str = argument("the file of labels, plain or .gz", "LABELS")
    output: str = argument(_TO_WRITE, "LMDB")
    backend: str = like(BACKEND)


@dataclass(frozen=True, kw_only=True)
class ConvertCifar:
    """
      osucaffe convert_cifar FOLDER OUTPUT

    FOLDER holds CIFAR-10's files, in the binary or the Python version; cifar10_train_lmdb and
    cifar10_test_lmdb are made in OUTPUT."""

    folder: str = argument("the folder of CIFAR-10's files", "FOLDER")
    output: str = argument("the folder to write the databases to", "OUTPUT")
    backend: str | None = argument("the kind of database", ("lmdb",), metavar="lmdb", nargs="?")
