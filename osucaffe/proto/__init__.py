"""Caffe's file formats: their schema, reading, writing, and the upgrade of old forms."""

from .blobs import (
    array_to_blob,
    blob_fits,
    blob_shape,
    blob_to_array,
    fill_blob,
    has_values,
)
from .caffe_pb2 import (
    TEST,
    TRAIN,
    BlobProto,
    BlobShape,
    Datum,
    FillerParameter,
    LayerParameter,
    NetParameter,
    NetState,
    NetStateRule,
    NetWeights,
    ParamSpec,
    SolverParameter,
    SolverState,
)
from .checksum import stated_checksum
from .files import read_mean, read_net, read_solver, write_mean
from .state import find_learned_net, read_state, write_state
from .text import format_text, parse_text, read_text, write_text
from .titles import label, title
from .unread_fields import idle_fields, is_unread, refuse_unread, why_idle
from .upgrade import upgrade_net, upgrade_solver
from .weights import (
    AnyWeights,
    check_hdf5_names,
    read_model,
    read_weights,
    reads_images,
    write_weights,
)

__all__ = [
    "TEST",
    "TRAIN",
    "AnyWeights",
    "BlobProto",
    "BlobShape",
    "Datum",
    "FillerParameter",
    "LayerParameter",
    "NetParameter",
    "NetState",
    "NetStateRule",
    "NetWeights",
    "ParamSpec",
    "SolverParameter",
    "SolverState",
    "array_to_blob",
    "blob_fits",
    "blob_shape",
    "blob_to_array",
    "check_hdf5_names",
    "fill_blob",
    "find_learned_net",
    "format_text",
    "has_values",
    "idle_fields",
    "is_unread",
    "label",
    "parse_text",
    "read_mean",
    "read_model",
    "read_net",
    "read_solver",
    "read_state",
    "read_text",
    "read_weights",
    "reads_images",
    "refuse_unread",
    "stated_checksum",
    "title",
    "upgrade_net",
    "upgrade_solver",
    "why_idle",
    "write_mean",
    "write_state",
    "write_text",
    "write_weights",
]
