"""cuDNN's backend interface, which is C: its library, descriptors, engines, plans.

ctypes frees the interpreter's lock while cuDNN works, so plans can be built by many threads at
once. Calls that take no time keep it: to hand it over takes longer than they do. What is to be
computed is said elsewhere: this module knows no convolution. cudnn_enums.py has the numbers.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_int, c_int64, c_void_p
from typing import Any, NamedTuple

from ....errors import UserError
from .cudnn_enums import (
    Address,
    Attribute,
    ConvolutionMode,
    DataType,
    DescriptorType,
    HeurMode,
    Knob,
    PointwiseMode,
    Type,
)
from .wheel import open_library

FIRST, END = 91300, 100000
"""The versions that are accepted: from 9.13 on, before 10 (major * 10000 + minor * 100 + patch)."""
MIN_KNOBS, MAX_KNOBS = 12, 48
"""Knobs of an engine at most: nearly always, and always."""


class CudnnError(RuntimeError):
    """What cuDNN says of a call that failed."""

    def __init__(self, status: int, call: str, text: str) -> None:
        super().__init__(f"cuDNN: {call} failed with status {status}: {text}")


# -- the library -----------------------------------------------------------------------------------


@functools.cache
def load() -> ctypes.CDLL:
    """The library. UserError says what is missing otherwise, or which versions it may have."""
    library = _open()
    library.cudnnGetVersion.restype = ctypes.c_size_t
    found: int = library.cudnnGetVersion()
    if not FIRST <= found < END:
        raise UserError(
            f"cuDNN {found // 10000}.{found // 100 % 100} cannot be used: osucaffe needs 9.13 or a "
            "later 9.x: pip install --upgrade nvidia-cudnn-cu13 (or nvidia-cudnn-cu12)"
        )
    return library


@functools.cache
def load_brief() -> ctypes.PyDLL:
    """The library for calls that are over at once: the interpreter's lock is kept."""
    return ctypes.PyDLL("", handle=load()._handle)


def _open() -> ctypes.CDLL:
    try:
        return open_library("nvidia.cudnn", "libcudnn.so.9")
    except OSError as error:
        raise UserError(
            f'a GPU needs cuDNN 9 ({error}): pip install "osucaffe[cuda13]" (or [cuda12]) brings '
            "it, or put the folder of libcudnn.so.9 into LD_LIBRARY_PATH"
        ) from None


def version() -> str:
    """As in "9.19.0"."""
    number: int = load().cudnnGetVersion()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def check(status: int, call: str) -> None:
    """Raise CudnnError, with cuDNN's own words, if a call failed."""
    if status:
        library, text = load(), ctypes.create_string_buffer(2048)
        library.cudnnGetLastErrorString(text, ctypes.c_size_t(len(text)))
        library.cudnnGetErrorString.restype = ctypes.c_char_p
        said = text.value or library.cudnnGetErrorString(c_int(status))
        raise CudnnError(status, call, " ".join(said.decode(errors="replace").split()))


# -- descriptors -----------------------------------------------------------------------------------

_TYPES: dict[type, tuple[Type, Any]] = {
    bool: (Type.BOOLEAN, ctypes.c_bool),
    int: (Type.INT64, c_int64),
    float: (Type.FLOAT, ctypes.c_float),
    Address: (Type.VOID_PTR, c_void_p),
    DataType: (Type.DATA_TYPE, c_int),
    ConvolutionMode: (Type.CONVOLUTION_MODE, c_int),
    PointwiseMode: (Type.POINTWISE_MODE, c_int),
    HeurMode: (Type.HEUR_MODE, c_int),
    Knob: (Type.KNOB_TYPE, c_int),
}
"""What cuDNN calls the types of values, and what they are in C."""


class Descriptor:
    """One of cuDNN's objects. It is destroyed when nothing refers to it any more."""

    def __init__(self, kind: DescriptorType) -> None:
        self.kind = kind
        self._brief = load_brief()
        self.pointer = c_void_p()
        self._held: list[Any] = []
        check(self._brief.cudnnBackendCreateDescriptor(kind, byref(self.pointer)), kind.name)

    def __del__(self) -> None:
        if self.pointer:
            self._brief.cudnnBackendDestroyDescriptor(self.pointer)

    def set(self, attribute: Attribute, *values: Any) -> None:
        """Give it values of one type: of _TYPES, a text, or a handle or other descriptors, which
        then live as long as this one."""
        kind, array = _array(values)
        self._held += [value for value in values if isinstance(value, Descriptor | Handle)]
        status = self._brief.cudnnBackendSetAttribute(
            self.pointer, attribute, kind, c_int64(len(array)), array
        )
        check(status, f"setting {attribute.name}")

    def get(self, attribute: Attribute, kind: Type, array: Any) -> int:
        """Let cuDNN fill an array; how many elements there are."""
        count = c_int64()
        status = self._brief.cudnnBackendGetAttribute(
            self.pointer, attribute, kind, c_int64(len(array)), byref(count), array
        )
        check(status, f"reading {attribute.name}")
        return count.value

    def integers(self, attribute: Attribute, kind: Type = Type.INT64, most: int = 32) -> list[int]:
        """Numbers, or those of an enumeration."""
        array = ((c_int64 if kind is Type.INT64 else c_int) * most)()
        return list(array[: self.get(attribute, kind, array)])

    def descriptors(
        self, attribute: Attribute, kind: DescriptorType, most: int
    ) -> list[Descriptor]:
        """Other descriptors that belong to it, in their order: no more than `most`."""
        made = [Descriptor(kind) for _ in range(most)]
        array = (c_void_p * most)(*(each.pointer for each in made))
        return made[: self.get(attribute, Type.BACKEND_DESCRIPTOR, array)]


def _array(values: Sequence[Any]) -> tuple[Type, Any]:
    """The type of values and an array of them, in C."""
    first, count = values[0], len(values)
    if isinstance(first, Descriptor | Handle):
        kind = Type.HANDLE if isinstance(first, Handle) else Type.BACKEND_DESCRIPTOR
        return kind, (c_void_p * count)(*(each.pointer for each in values))
    if isinstance(first, str):
        text = first.encode() + b"\0"
        return Type.CHAR, ctypes.create_string_buffer(text, len(text))
    kind, c_type = _TYPES[type(first)]
    return kind, (c_type * count)(*values)


def build(
    kind: DescriptorType, attributes: Mapping[Attribute, Any], handle: Handle | None = None
) -> Descriptor:
    """A finalized descriptor with these attributes; a list or tuple is several values of one.
    handle: of the device that it is for, where it has to know that."""
    made = Descriptor(kind)
    device = handle.attributes.get(kind, {}) if handle else {}
    for attribute, value in {**device, **attributes}.items():
        made.set(attribute, *(value if isinstance(value, list | tuple) else [value]))
    # Plans are compiled here, while other threads run.
    check(load().cudnnBackendFinalize(made.pointer), f"finalizing {kind.name} descriptor")
    return made


# -- where plans are to run ------------------------------------------------------------------------


class Handle:
    """cuDNN on the current device. One thread uses it at a time.

    attributes: what descriptors that are for this device say of it, by their kinds.
    """

    attributes: Mapping[DescriptorType, Mapping[Attribute, Any]]

    def __init__(self) -> None:
        self._library = load()
        self.pointer = c_void_p()
        check(self._library.cudnnCreate(byref(self.pointer)), "cudnnCreate")
        self.attributes = {
            DescriptorType.OPERATIONGRAPH: {Attribute.OPERATIONGRAPH_HANDLE: self},
            DescriptorType.EXECUTION_PLAN: {Attribute.EXECUTION_PLAN_HANDLE: self},
        }

    def use(self, stream: int) -> None:
        """Launch on this stream from now on."""
        check(self._library.cudnnSetStream(self.pointer, c_void_p(stream)), "cudnnSetStream")


# -- engines and plans -----------------------------------------------------------------------------


class Configuration(NamedTuple):
    """An engine of cuDNN, by its number, and the values of its knobs, by theirs."""

    engine: int
    knobs: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return "_".join([f"eng{self.engine}", *(f"k{knob}={value}" for knob, value in self.knobs)])

    @classmethod
    def parse(cls, text: str) -> Configuration:
        """From the text that `str` gives. ValueError where it is none."""
        engine, *knobs = text.split("_")
        if not engine.startswith("eng"):
            raise ValueError(f"{text!r} is not an engine of cuDNN")
        pairs = (each.removeprefix("k").split("=") for each in knobs)
        return cls(int(engine[3:]), tuple((int(knob), int(value)) for knob, value in pairs))


class Proposal(NamedTuple):
    """What heuristics propose: a configuration, its notes, and its descriptor."""

    configuration: Configuration
    numerical_notes: frozenset[int]
    behavior_notes: frozenset[int]
    descriptor: Descriptor


def operation_graph(handle: Handle, operations: Sequence[Descriptor]) -> Descriptor:
    """Operations that are computed together. CudnnError where cuDNN knows no such graph."""
    attributes = {Attribute.OPERATIONGRAPH_OPS: operations}
    return build(DescriptorType.OPERATIONGRAPH, attributes, handle)


def proposals(handle: Handle, graph: Descriptor, mode: HeurMode, most: int) -> Iterator[Proposal]:
    """What the heuristics of a mode propose for a graph, the most promising first."""
    attributes = {Attribute.ENGINEHEUR_OPERATION_GRAPH: graph, Attribute.ENGINEHEUR_MODE: mode}
    heuristics = build(DescriptorType.ENGINEHEUR, attributes, handle)
    results = Attribute.ENGINEHEUR_RESULTS
    notes: dict[int, tuple[frozenset[int], frozenset[int]]] = {}
    for found in heuristics.descriptors(results, DescriptorType.ENGINECFG, most):
        configuration, engine = _read(found)
        if configuration.engine not in notes:
            notes[configuration.engine] = (
                frozenset(engine.integers(Attribute.ENGINE_NUMERICAL_NOTE, Type.NUMERICAL_NOTE)),
                frozenset(engine.integers(Attribute.ENGINE_BEHAVIOR_NOTE, Type.BEHAVIOR_NOTE)),
            )
        yield Proposal(configuration, *notes[configuration.engine], found)


def _read(found: Descriptor) -> tuple[Configuration, Descriptor]:
    """What an engine's configuration says, and the engine."""
    kinds = DescriptorType
    [engine] = found.descriptors(Attribute.ENGINECFG_ENGINE, kinds.ENGINE, 1)
    [number] = engine.integers(Attribute.ENGINE_GLOBAL_INDEX, most=1)
    choices: list[Descriptor] = []
    for room in MIN_KNOBS, MAX_KNOBS:  # of knobs, cuDNN tells no number before it lists them
        choices = found.descriptors(Attribute.ENGINECFG_KNOB_CHOICES, kinds.KNOB_CHOICE, room)
        if len(choices) < room:
            break
    knobs = []
    for choice in choices:
        [knob] = choice.integers(Attribute.KNOB_CHOICE_KNOB_TYPE, Type.KNOB_TYPE, 1)
        [value] = choice.integers(Attribute.KNOB_CHOICE_KNOB_VALUE, most=1)
        knobs.append((knob, value))
    return Configuration(number, tuple(knobs)), engine


def configure(handle: Handle, graph: Descriptor, configuration: Configuration) -> Descriptor:
    """The descriptor of a configuration for a graph. CudnnError where the engine does not know
    the graph."""
    attributes: dict[Attribute, Any] = {
        Attribute.ENGINE_OPERATION_GRAPH: graph,
        Attribute.ENGINE_GLOBAL_INDEX: configuration.engine,
    }
    engine = build(DescriptorType.ENGINE, attributes, handle)
    choices = [
        build(
            DescriptorType.KNOB_CHOICE,
            {Attribute.KNOB_CHOICE_KNOB_TYPE: Knob(knob), Attribute.KNOB_CHOICE_KNOB_VALUE: value},
        )
        for knob, value in configuration.knobs
    ]
    attributes = {Attribute.ENGINECFG_ENGINE: engine}
    if choices:
        attributes[Attribute.ENGINECFG_KNOB_CHOICES] = choices
    return build(DescriptorType.ENGINECFG, attributes)


class Plan:
    """A graph computed by a configuration: `workspace` bytes of scratch, and `execute`."""

    def __init__(self, finalized: Descriptor) -> None:
        self._plan = finalized
        [self.workspace] = finalized.integers(Attribute.EXECUTION_PLAN_WORKSPACE_SIZE, most=1)
        self._run = load().cudnnBackendExecute

    @classmethod
    def build(cls, handle: Handle, configuration: Descriptor) -> Plan:
        """The plan of a configuration. It may have to be compiled, which takes up to half a second
        of a core. CudnnError where the configuration cannot compute the graph."""
        attributes = {Attribute.EXECUTION_PLAN_ENGINE_CONFIG: configuration}
        return cls(build(DescriptorType.EXECUTION_PLAN, attributes, handle))

    @classmethod
    def parse(cls, handle: Handle, text: str) -> Plan:
        """From the text that `str` gives: nothing is compiled. CudnnError where that was another
        version's, or another device's."""
        attributes = {Attribute.EXECUTION_PLAN_JSON_REPRESENTATION: text}
        return cls(build(DescriptorType.EXECUTION_PLAN, attributes, handle))

    def __str__(self) -> str:
        attribute = Attribute.EXECUTION_PLAN_JSON_REPRESENTATION
        size = self._plan.get(attribute, Type.CHAR, (ctypes.c_char * 0)())
        text = (ctypes.c_char * size)()
        self._plan.get(attribute, Type.CHAR, text)
        return bytes(text).rstrip(b"\0").decode()

    def bind(self, addresses: Mapping[int, int], workspace: int) -> Descriptor:
        """What `execute` runs on. addresses: of the tensors, by their unique ids; workspace: of
        the scratch memory."""
        return build(
            DescriptorType.VARIANT_PACK,
            {
                Attribute.VARIANT_PACK_UNIQUE_IDS: [*addresses],
                Attribute.VARIANT_PACK_DATA_POINTERS: [*map(Address, addresses.values())],
                Attribute.VARIANT_PACK_WORKSPACE: Address(workspace),
            },
        )

    def execute(self, handle: Handle, pack: Descriptor) -> None:
        """Launch it on the handle's stream."""
        status = self._run(handle.pointer, self._plan.pointer, pack.pointer)
        if status:
            check(status, "running a plan")
