"""The options of SSD's tools that make data sets."""

from __future__ import annotations

from dataclasses import dataclass

from ...cli.data.options import ConvertImageset
from ...options.flags import argument, field_of, flag, like
from ...options.kinds import EXTENT


@dataclass(frozen=True, kw_only=True)
class ConvertAnnoset(ConvertImageset):
    """
      osucaffe convert_annoset --anno_type=detection --label_map_file=labelmap_voc.prototxt \\
          --encoded --encode_type=jpg FOLDER/ LIST LMDB

    LIST has a line IMAGE ANNOTATION for each image; both get the prefix FOLDER/. An annotation is
    an XML file as VOC has it, a JSON file with the objects of one image as COCO has them, or a text
    with lines LABEL XMIN YMIN XMAX YMAX, in pixels."""

    list: str = like(
        field_of(ConvertImageset, "list"),
        "a text file with lines IMAGE ANNOTATION (classification: IMAGE LABEL)",
    )
    output: str = like(field_of(ConvertImageset, "output"))
    anno_type: str = flag(
        "what the list has besides images", ("classification", "detection"), "classification"
    )
    label_type: str = flag("the form of the annotations", ("xml", "json", "txt"), "xml")
    label_map_file: str = flag(
        "a prototxt with the names of the labels and their numbers", "FILE", ""
    )
    check_label: bool = flag("refuse a label map that has a name or a number twice")
    min_dim: int = flag(
        "resize the shorter side to at least this, in proportion; 0: leave it as it is", EXTENT, 0
    )
    max_dim: int = flag("resize to at most this, in proportion; 0: leave it as it is", EXTENT, 0)


@dataclass(frozen=True, kw_only=True)
class GetImageSize:
    """
      osucaffe get_image_size FOLDER/ LIST OUT

    LIST has a line IMAGE ANNOTATION for each image, OUT gets a line NAME HEIGHT WIDTH."""

    root: str = argument("the folder of the images", "FOLDER/")
    list: str = argument("a text file with lines IMAGE ANNOTATION", "LIST")
    output: str = argument("the file to write", "OUT")
    name_id_file: str = flag("a file with lines NAME NUMBER: write numbers for names", "FILE", "")
