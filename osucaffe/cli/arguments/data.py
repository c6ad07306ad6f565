"""Owns the options of the commands that make, inspect and check databases."""

from __future__ import annotations

from .options import COUNT, EXTENT, INTEGER, Kind, Options, share


def data(add: Options) -> None:
    """Make databases of data sets or photographs; inspect and check a database.

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
    command = add.commands("name", required=True)
    mnist = command("mnist", "make the databases of MNIST")
    mnist("--out", "the folder to write to", "DIR", "data/mnist")
    mnist("--files", "the folder of MNIST's files", "DIR")
    mnist(
        "--source",
        "where to take MNIST from (default: auto, the first that is available)",
        ("auto", "files", "download", "packaged"),
        "auto",
    )
    for name, files in (
        ("cifar10", "a folder to which its archive was unpacked, binary or Python version"),
        (
            "fashion_mnist",
            "a folder with its four files, which have the names of MNIST's, plain or .gz",
        ),
    ):
        add = command(name, f"make the databases of {name}")
        add("--files", files, "DIR", required=True)
        add("--out", "where to", "DIR", f"data/{name}")
    _folder(command("folder", "make databases of photographs, a folder for each class"))
    _annotated(command("annotated", "make a database of images with boxes"))
    convert = command("convert", "convert a LevelDB to an LMDB")
    convert("input", "the database to read, LevelDB or LMDB", "LEVELDB")
    convert("output", "the LMDB to write", "LMDB")
    inspect = command("inspect", "tell what an LMDB holds")
    inspect("input", "the database", "LMDB")
    inspect("--sheet", "write a picture of some records (.png or .jpg)", "FILE")
    inspect("--samples", "how many records to show", COUNT, 60)
    inspect.common("--readers")
    verify = command("verify", "decode every record of LMDBs, and name the bad ones")
    verify("input", "the databases", "LMDB", nargs="+")
    verify("--classes", "check that labels are 0 to N-1", COUNT)
    verify.common("--readers")


def _folder(add: Options) -> None:
    add("photos", "a folder that holds one folder of images per class", "PHOTOS")
    add("--out", "the folder to write to", "DIR", required=True)
    add("--val_share", "the share held out for validation", Kind("X", share), 0.2)
    add("--size", "width and height of the stored images", COUNT, 256)
    add(
        "--fit",
        "how to make images square: keep the middle (crop, the default) or distort (squash)",
        ("crop", "squash"),
        "crop",
    )
    add("--encode_type", "compress the records: jpg or png", "TYPE", "")
    add.common("--readers", "--on_bad_record")


def _annotated(add: Options) -> None:
    add("output", "the database to write", "LMDB")
    add("--voc", "a PASCAL VOC folder (may be repeated)", "DIR", action="append")
    add("--split", "VOC's split", "SPLIT", "trainval")
    add("--coco", "a COCO annotation file", "FILE")
    add("--images", "the folder of COCO's images", "DIR")
    add("--labels", "a label map for VOC (default: VOC's 20 classes)", "FILE")
    add.common("--readers")


def convert_imageset(add: Options) -> None:
    """Make an LMDB of the image files in a list.

      osucaffe convert_imageset --resize_height 256 --resize_width 256 --shuffle FOLDER/ LIST LMDB

    LIST has a line NAME LABEL for each image; each NAME gets the prefix FOLDER/."""
    _of_list(add, "a text file with lines NAME LABEL")


def _of_list(add: Options, what: str) -> None:
    """A list of images, and how they are stored."""
    add("root", "prefix of each name in the list", "FOLDER/")
    add("list", what, "LIST")
    add("output", "the LMDB to write; an existing one is replaced", "LMDB")
    add("--gray", "write one channel instead of three")
    add("--shuffle", "write the images in random order")
    add("--seed", "seed of that order", INTEGER, 1)
    add.common("--backend")
    for name in ("--resize_width", "--resize_height"):
        add(name, "resize all images to this; 0: leave them as they are", EXTENT, 0)
    add("--check_size", "refuse images that differ in size")
    add("--encoded", "store the images compressed")
    add("--encode_type", "how to compress: jpg or png", "TYPE", "")
    add.common("--readers", "--on_bad_record", "--ignore_exif")


def convert_annoset(add: Options) -> None:
    """Make an LMDB of images and their annotations, as SSD does.

      osucaffe convert_annoset --anno_type=detection --label_map_file=labelmap_voc.prototxt \\
          --encoded --encode_type=jpg FOLDER/ LIST LMDB

    LIST has a line IMAGE ANNOTATION for each image; both get the prefix FOLDER/. An annotation is
    an XML file as VOC has it, a JSON file with the objects of one image as COCO has them, or a text
    with lines LABEL XMIN YMIN XMAX YMAX, in pixels."""
    _of_list(add, "a text file with lines IMAGE ANNOTATION (classification: IMAGE LABEL)")
    kinds = ("classification", "detection")
    add("--anno_type", "what the list has besides images", kinds, "classification")
    add("--label_type", "the form of the annotations", ("xml", "json", "txt"), "xml")
    add("--label_map_file", "a prototxt with the names of the labels and their numbers", "FILE", "")
    add("--check_label", "refuse a label map that has a name or a number twice")
    for name, side in (("--min_dim", "the shorter side to at least"), ("--max_dim", "to at most")):
        add(name, f"resize {side} this, in proportion; 0: leave it as it is", EXTENT, 0)


def get_image_size(add: Options) -> None:
    """Write the size of each image of a list, as SSD's nets read it to save their detections.

      osucaffe get_image_size FOLDER/ LIST OUT

    LIST has a line IMAGE ANNOTATION for each image, OUT gets a line NAME HEIGHT WIDTH."""
    add("root", "the folder of the images", "FOLDER/")
    add("list", "a text file with lines IMAGE ANNOTATION", "LIST")
    add("output", "the file to write", "OUT")
    add("--name_id_file", "a file with lines NAME NUMBER: write numbers for names", "FILE", "")


def compute_image_mean(add: Options) -> None:
    """Compute the mean image of an LMDB.

      osucaffe compute_image_mean LMDB mean.binaryproto

    Prints the mean of each channel, for mean_value, and writes the mean image, if a file is given,
    for mean_file."""
    add("input", "the database", "LMDB")
    add("output", "where to write the mean", "FILE", nargs="?")
    add.common("--backend", "--readers", "--on_bad_record", "--ignore_exif")


def convert_mnist(add: Options) -> None:
    """Make an LMDB of a pair of MNIST files.

      osucaffe convert_mnist train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz LMDB

    `osucaffe data mnist` makes both databases at once, and finds the files."""
    add("images", "the file of images, plain or .gz", "IMAGES")
    add("labels", "the file of labels, plain or .gz", "LABELS")
    add("output", "the LMDB to write; an existing one is replaced", "LMDB")
    add.common("--backend")


def convert_cifar(add: Options) -> None:
    """Make the LMDBs of CIFAR-10.

      osucaffe convert_cifar FOLDER OUTPUT

    FOLDER holds CIFAR-10's files, in the binary or the Python version; cifar10_train_lmdb and
    cifar10_test_lmdb are made in OUTPUT."""
    add("folder", "the folder of CIFAR-10's files", "FOLDER")
    add("output", "the folder to write the databases to", "OUTPUT")
    add("backend", "the kind of database", ("lmdb",), metavar="lmdb", nargs="?")
