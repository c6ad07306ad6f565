"""Owns cuDNN's engines and plans: what its heuristics propose for a graph, and what computes it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .cudnn import Descriptor, Handle, build, check, load
from .cudnn_enums import Attribute, DescriptorType, HeurMode, Knob, Type

FEW_KNOBS, MOST_KNOBS = 12, 48
"""Of an engine: nearly always, and always."""


class Configuration(NamedTuple):
    """An engine of cuDNN and what it is told: the number, and values by the numbers of knobs."""

    engine: int
    knobs: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return "_".join([f"eng{self.engine}", *(f"k{knob}={value}" for knob, value in self.knobs)])

    @classmethod
    def parse(cls, text: str) -> Configuration:
        """From the text that `str` gives. ValueError where it is none."""
        engine, *knobs = text.split("_")
        if not engine.startswith("eng"):
            raise ValueError(f"{text!r} is no engine of cuDNN")
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
    graph = Descriptor(DescriptorType.OPERATIONGRAPH)
    handle.graph(graph)
    graph.set(Attribute.OPERATIONGRAPH_OPS, *operations)
    return graph.finalize()


def proposals(handle: Handle, graph: Descriptor, mode: HeurMode, most: int) -> Iterator[Proposal]:
    """What the heuristics of a mode propose for a graph, the most promising first."""
    heuristics = Descriptor(DescriptorType.ENGINEHEUR)
    heuristics.set(Attribute.ENGINEHEUR_OPERATION_GRAPH, graph)
    heuristics.set(Attribute.ENGINEHEUR_MODE, mode)
    handle.heuristics(heuristics)
    heuristics.finalize()
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
    for room in FEW_KNOBS, MOST_KNOBS:  # of knobs, cuDNN tells no number before it lists them
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
    engine = Descriptor(DescriptorType.ENGINE)
    engine.set(Attribute.ENGINE_OPERATION_GRAPH, graph)
    engine.set(Attribute.ENGINE_GLOBAL_INDEX, configuration.engine)
    handle.engine(engine)
    engine.finalize()
    choices = [
        build(
            DescriptorType.KNOB_CHOICE,
            {Attribute.KNOB_CHOICE_KNOB_TYPE: Knob(knob), Attribute.KNOB_CHOICE_KNOB_VALUE: value},
        )
        for knob, value in configuration.knobs
    ]
    attributes: dict[Attribute, Any] = {Attribute.ENGINECFG_ENGINE: engine}
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
        made = Descriptor(DescriptorType.EXECUTION_PLAN)
        handle.plan(made)
        made.set(Attribute.EXECUTION_PLAN_ENGINE_CONFIG, configuration)
        return cls(made.finalize())

    @classmethod
    def parse(cls, handle: Handle, text: str) -> Plan:
        """From the text that `str` gives: nothing is compiled. CudnnError where that was another
        version's, or another device's."""
        made = Descriptor(DescriptorType.EXECUTION_PLAN)
        handle.plan(made)
        made.set(Attribute.EXECUTION_PLAN_JSON_REPRESENTATION, text)
        return cls(made.finalize())

    def __str__(self) -> str:
        attribute = Attribute.EXECUTION_PLAN_JSON_REPRESENTATION
        size = self._plan.get(attribute, Type.CHAR, (ctypes.c_char * 0)())
        text = (ctypes.c_char * size)()
        self._plan.get(attribute, Type.CHAR, text)
        return bytes(text).rstrip(b"\0").decode()

    def bind(self, addresses: Mapping[int, int], workspace: int) -> Descriptor:
        """What `execute` runs on. addresses: of the tensors, by their unique ids; workspace: of
        the scratch memory."""
        pack = Descriptor(DescriptorType.VARIANT_PACK)
        pack.set(Attribute.VARIANT_PACK_UNIQUE_IDS, *addresses)
        pack.set_pointers(Attribute.VARIANT_PACK_DATA_POINTERS, *addresses.values())
        pack.set_pointers(Attribute.VARIANT_PACK_WORKSPACE, workspace)
        return pack.finalize()

    def execute(self, handle: Handle, pack: Descriptor) -> None:
        """Launch it on the handle's stream."""
        status = self._run(handle.pointer, self._plan.pointer, pack.pointer)
        if status:
            check(status, "running a plan")
