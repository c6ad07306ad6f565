"""The verifier of programs: it finds faults planted in passes, and none where there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.primitives.recording import Primitive
from osucaffe.backends.tensor import Tensor
from osucaffe.cli import main
from osucaffe.graph.passes import (
    batch_norm,
    constants,
    editing,
    folding,
    inference,
    memory,
    overlap,
    pipeline,
)
from osucaffe.graph.passes.verify import SWITCH, VerificationError
from osucaffe.net import Net
from tests.layers.nets import build

from .test_batch_norm import NOISE, branch, layer
from .test_inference import convolution

Plant = Callable[[pytest.MonkeyPatch], None]


class Overlapping(Cpu):
    """A CPU that says that gradients may run beside others, as a GPU does: it runs all in turn."""

    overlaps = Cuda.overlaps


def given(name: str, *shape: int) -> str:
    dims = " ".join(f"dim: {extent}" for extent in shape)
    return layer(name, "Input", "", name, f"input_param {{ shape {{ {dims} }} }}")


def product(name: str, bottom: str, top: str, more: str = "", outputs: int = 5) -> str:
    settings = f"num_output: {outputs} weight_filler {NOISE}"
    return layer(name, "InnerProduct", bottom, top, f"inner_product_param {{ {settings} }} {more}")


def normalized(name: str, bottom: str) -> str:
    return branch(name, bottom, relu=False)


LOSS = layer("loss", "EuclideanLoss", "y t", "loss")
RESIDUAL = (
    given("x", 4, 3, 6, 5)
    + given("t", 4, 8, 6, 5)
    + normalized("a", "x")
    + layer("relu_a", "ReLU", "a", "a")
    + normalized("b", "a")
    + layer("sum", "Eltwise", "a b", "s")
    + layer("relu_s", "ReLU", "s", "s")
    + normalized("c", "s")
    + layer("sum2", "Eltwise", "s c", "y")
    + LOSS
)
VIEWED = (
    given("x", 2, 4, 6, 6)
    + given("t", 2, 6, 6, 6)
    + convolution("c", "x", "c")
    + layer("s", "Scale", "c", "s")
    + layer("v", "Flip", "s", "v", "flip_param { flip_width: true }")
    + layer("sum", "Eltwise", "s v", "y")
    + LOSS
)
CLASSIFIER = (
    given("x", 4, 3, 8, 8)
    + given("label", 4)
    + convolution("c1", "x", "c1")
    + layer("p1", "Pooling", "c1", "p1", "pooling_param { kernel_size: 2 stride: 2 }")
    + layer("r1", "ReLU", "p1", "p1")
    + layer("n1", "LRN", "p1", "n1", "lrn_param { local_size: 3 }")
    + convolution("c2", "n1", "c2")
    + layer("r2", "ReLU", "c2", "c2")
    + layer("d2", "Dropout", "c2", "c2")
    + product("f1", "c2", "f1", 'param { name: "w" } param { name: "b" }')
    + product("f2", "c2", "f2", 'param { name: "w" } param { name: "b" }')
    + layer("l1", "SoftmaxWithLoss", "f1 label", "l1", "loss_weight: 1")
    + layer("l2", "SoftmaxWithLoss", "f2 label", "l2", "loss_weight: 0.3")
)
DEPLOYED = (
    given("x", 2, 3, 6, 5)
    + normalized("a", "x")
    + layer("relu_a", "ReLU", "a", "a")
    + layer("drop", "Dropout", "a", "d")
    + normalized("b", "d")
    + layer("sum", "Eltwise", "d b", "s")
    + layer("relu_s", "ReLU", "s", "s")
    + layer("lrn", "LRN", "s", "n", "lrn_param { local_size: 3 }")
    + layer("pool", "Pooling", "n", "p", "pooling_param { kernel_size: 2 stride: 2 }")
    + convolution("tail", "p", "tail")
    + layer("elu", "ELU", "tail", "y")
)
TRAIN: dict[str, object] = {"phase": "TRAIN"}
ADDING = TRAIN | {"accumulate": True}
TEST: dict[str, object] = {"phase": "TEST", "inference": True}


def change(where: str, mutate: Callable[[list[list[Primitive]]], object]) -> Plant:
    """Plant what a fault in a pass would do to the programs that it gives."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        for name in "COMPILE", "PREPARE", "PLACE":
            changed = []
            for each in getattr(pipeline, name):

                def run(made, each=each):
                    each.run(made)
                    mutate(made.programs)

                changed.append(dataclasses.replace(each, run=run) if each.name == where else each)
            patch.setattr(pipeline, name, tuple(changed))

    return plant


def replace(module: object, name: str, function: object) -> Plant:
    """Plant another function in a pass."""
    return lambda patch: patch.setattr(module, name, function)


def find(program: list[Primitive], name: str, of: str = "") -> int:
    """Where a call of a primitive (of a layer) stands."""
    return next(i for i, each in enumerate(program) if each.name == name and of in ("", each.layer))


Edit = Callable[[list[Primitive], int], Any]
"""Of a program, at the index of a call."""


def at(where: str, program: int, name: str, of: str, edit: Edit) -> Plant:
    """Plant an edit at a call of this primitive and layer."""
    return change(where, lambda made: edit(made[program], find(made[program], name, of)))


def drop(program: int, name: str, of: str = "") -> Plant:
    return at("derive backward", program, name, of, lambda calls, index: calls.pop(index))


def swap(where: str, program: int, first: str, of: str, second: str, of2: str) -> Plant:
    def edit(calls: list[Primitive], i: int) -> None:
        j = find(calls, second, of2)
        calls[i].position, calls[j].position = calls[j].position, calls[i].position
        calls[i], calls[j] = calls[j], calls[i]

    return at(where, program, first, of, edit)


def live(edit: Callable[[memory.LiveRange], Any]) -> Plant:
    """Plant an edit of each live range."""

    def edited(calls):
        ranges = live_ranges(calls)
        for each in ranges.values():
            edit(each)
        return ranges

    return replace(memory, "live_ranges", edited)


live_ranges = memory.live_ranges


# -- planted faults -------------------------------------------------------------------------------


def blind_to_views(patch: pytest.MonkeyPatch) -> None:
    """What `share_gradients` did: direct reads of a dropped copy are replaced, no others."""
    for module in (batch_norm, editing):
        patch.setattr(module, "reads_view", lambda call, tensor: False)


def only_first_read(call: Primitive, old: Tensor, new: Tensor) -> None:
    for name in call.read_fields:
        if getattr(call, name) is old:
            setattr(call, name, new)  # and what stands in lists is forgotten


def changed_addend(programs: list[list[Primitive]]) -> None:
    """An addend that is changed before it is added."""
    forward = programs[0]
    forward[find(forward, "sum", "sum")].xs[0] = forward[find(forward, "relu", "relu_s")].x


def forward_alone(calls):
    """Lives that end with forward, though backward reads."""
    calls = [*calls]
    forward = [call for call in calls if not call.name.endswith("_backward")]
    found = live_ranges(calls)
    for tensor, each in live_ranges(forward).items():
        found[tensor].last = each.last
    return found


def longer(calls_, kinds, size_of):
    overlap_calls(calls_, kinds, size_of)
    for call in calls_:
        call.overlap += call.overlap > 0  # one more than waits for it


overlap_calls = overlap.overlap_calls


def beside_all(calls_, kinds, size_of):
    for index, call in enumerate(calls_):
        if isinstance(call, kinds):
            call.overlap = len(calls_) - index - 1


def gradient(edit: Edit) -> Plant:
    return at("derive backward", 1, "convolution_backward_filter", "c2", edit)


def begun_gradient(programs):
    backward = programs[1]
    second = [each for each in backward if each.name == "inner_product_backward_filter"][1]
    second.accumulates = frozenset()


def wrong_layer(programs: list[list[Primitive]]) -> None:
    """A convolution that adds in the sum's turn, and says that it runs in its own."""
    for call in programs[0]:
        call.position -= 2 * any(each.name == "sum" for each in call.fused)


def anything_constant(self, tensor):
    return True


def alone(self, tensor, *known):
    return True


def wrong_view(programs):
    backward = programs[1]
    for call in backward:
        for name in call.read_fields:
            value = getattr(call, name)
            if isinstance(value, Tensor) and value.base is not None:
                setattr(call, name, Tensor(value.shape, name="left behind"))


def other_blob(programs):
    """What the layer before read, of the same shape."""
    forward = programs[0]
    lrn = forward[find(forward, "lrn")]
    forward[find(forward, "convolution", "c2")].x = lrn.x


def scratch_over_operands(patch: pytest.MonkeyPatch) -> None:
    plan_memory = memory.plan_memory

    def planned(calls, size_of):
        calls = [*calls]
        plan = plan_memory(calls, size_of)
        call = next(call for call in calls if call.scratch and call.name == "convolution")
        offsets = {id(tensor): offset for tensor, offset in plan.offsets}
        offsets[id(call.scratch[0])] = offsets[id(call.y)]
        plan.offsets = [(tensor, offsets[id(tensor)]) for tensor, _ in plan.offsets]
        return plan

    patch.setattr(pipeline, "plan_memory", planned)


def half_the_size(patch: pytest.MonkeyPatch) -> None:
    whole = memory.plan_memory
    patch.setattr(
        pipeline,
        "plan_memory",
        lambda times, size: whole(times, lambda t: size(t) // 2),
    )


def moved_late(patch: pytest.MonkeyPatch) -> None:
    """A pool that grew, whose first plan stayed where it was: here, the second half of one."""

    def add(self, plan):
        self._plans.append(plan)
        self._memory = self.backend.allocate(plan.size)
        for tensor, offset in plan.offsets:
            self.backend.place(tensor, self._memory, offset // 2 // 64 * 64)

    patch.setattr(memory.Pool, "add", add)


def without_lrn(programs: list[list[Primitive]]) -> None:
    programs[0][:] = [each for each in programs[0] if each.name != "lrn"]


def stale_constant(self, name, record, *first):
    made = constants_get(self, name, record, *first)
    if first:
        self.new.remove(first[0])
    return made


constants_get = constants.Constants.get


def changed_parameter(patch: pytest.MonkeyPatch) -> None:
    """The program writes what a constant was made of."""
    makers: list[Primitive] = []

    def get(self, name, record, *first):
        makers.extend(first)
        return constants_get(self, name, record, *first)

    def mutate(programs: list[list[Primitive]]) -> None:
        lrn = programs[0][find(programs[0], "lrn")]
        lrn.y = next(makers[0].read_tensors())

    patch.setattr(constants.Constants, "get", get)
    change("drop unread results", mutate)(patch)


def only_makers(self, tensor):
    return [call for call in users_of(self, tensor) if editing.writes(call, tensor)]


users_of = editing.Users.of


@dataclass(frozen=True)
class Fault:
    plant: Plant
    text: str = CLASSIFIER
    options: dict[str, object] = dataclasses.field(default_factory=lambda: TRAIN)
    backend: type[Cpu] = Cpu


class NumPyOnly(Cpu):
    def __init__(self) -> None:
        super().__init__(onednn=False)


def lost_bias(program, channels, given):
    """Folds a normalization without the bias of its scale."""
    return folding_affine(program, channels, given | {"bias": None})


folding_affine = folding._affine

TIED = (
    given("x", 4)
    + given("t", 4, 10)
    + layer(
        "e",
        "Embed",
        "x",
        "e",
        f"embed_param {{ input_dim: 10 num_output: 5 bias_term: false "
        f'weight_filler {NOISE} }} param {{ name: "w" share_mode: PERMISSIVE }}',
    )
    + layer(
        "f",
        "InnerProduct",
        "e",
        "y",
        "inner_product_param { num_output: 10 bias_term: false "
        '{transpose} } param { name: "w" share_mode: PERMISSIVE }',
    )
    + LOSS
)
"""A matrix that looks words up, and predicts them."""
BRANCHES = (
    given("x", 2, 3, 6, 5)
    + convolution("a", "x", "a")
    + layer("tanh", "TanH", "x", "h")
    + convolution("b", "h", "b")
    + layer("sum", "Eltwise", "a b", "s")
    + layer("elu", "ELU", "s", "y")
)


SEEN = {
    "a folded bias is lost": Fault(replace(folding, "_affine", lost_bias), DEPLOYED, TEST),
    "a dropped copy is read through a view": Fault(blind_to_views, VIEWED),
    "a dropped copy is read in a list": Fault(
        replace(batch_norm, "replace_read", only_first_read), RESIDUAL
    ),
    "a dropped copy is read where the original has changed": Fault(
        replace(batch_norm, "writes", lambda call, tensor: False), RESIDUAL
    ),
    "a copy goes, its readers stay": Fault(
        replace(inference, "replace_read", lambda call, old, new: None), DEPLOYED, TEST
    ),
    "an activation is lost": Fault(drop(0, "dropout")),
    "a layer's forward is lost": Fault(drop(0, "lrn")),
    "a gradient is lost": Fault(drop(1, "convolution_backward_filter", "c2")),
    "a gradient of data is lost": Fault(drop(1, "convolution_backward_data", "c2")),
    "layers in place change turns": Fault(
        swap("ReLU before pooling", 0, "relu", "r2", "dropout", "d2")
    ),
    "gradients in place change turns": Fault(
        swap("derive backward", 1, "relu_backward", "r2", "dropout_backward", "d2")
    ),
    "a call runs before its input is made": Fault(
        swap("fuse ReLU", 0, "lrn", "n1", "convolution", "c2")
    ),
    "what is added is another version": Fault(
        change("ReLU before pooling", changed_addend), RESIDUAL
    ),
    "a sum is joined whose term others read": Fault(
        lambda patch: (
            patch.setattr(batch_norm.Users, "only", alone),
            patch.setattr(batch_norm, "follows", lambda call, before: True),
        ),
        RESIDUAL + layer("look", "Power", "b", "look"),
    ),
    "memory is used again one call early": Fault(
        live(lambda each: setattr(each, "last", max(each.first, each.last - 1)))
    ),
    "memory is taken one call late": Fault(
        live(lambda each: setattr(each, "first", min(each.last, each.first + 1)))
    ),
    "memory is used again that backward reads": Fault(
        replace(memory, "live_ranges", forward_alone)
    ),
    "half the memory is planned": Fault(half_the_size),
    "tensors are placed over each other": Fault(moved_late),
    "scratch memory lies over an operand": Fault(scratch_over_operands, backend=NumPyOnly),
    "a wait is missing": Fault(
        replace(pipeline, "overlap_calls", longer),
        TIED.replace("{transpose}", ""),
        backend=Overlapping,
    ),
    "all waits are missing": Fault(
        replace(pipeline, "overlap_calls", beside_all), TIED.replace("{transpose}", ""),
        backend=Overlapping,
    ),
    "what runs beside is looked for without views": Fault(
        replace(overlap, "owners", set),
        TIED.replace("{transpose}", "transpose: true"), backend=Overlapping,
    ),
    "a gradient is computed twice": Fault(
        gradient(lambda calls, index: calls.insert(index, calls[index].changed()))
    ),
    "a second gradient of shared weights overwrites the first": Fault(
        change("derive backward", begun_gradient)
    ),
    "a first gradient is added to what was there": Fault(
        gradient(lambda calls, i: setattr(calls[i], "accumulates", frozenset(["dw", "db"])))
    ),
    "a gradient that is only added to is overwritten": Fault(
        gradient(lambda calls, i: setattr(calls[i], "accumulates", frozenset())), options=ADDING
    ),
    "a gradient comes behind its hook": Fault(
        gradient(lambda calls, index: calls.append(calls.pop(index)))
    ),
    "a view is left behind": Fault(change("derive backward", wrong_view), VIEWED),
    "another blob is read": Fault(change("ReLU before pooling", other_blob)),
    "terms are turned": Fault(
        at("ReLU before pooling", 0, "sum", "sum", lambda calls, i: calls[i].xs.reverse()),
        RESIDUAL,
    ),
    "a sum runs out of its turn": Fault(change("add in place", wrong_layer), BRANCHES, TEST),
    "a sum is added in memory that is still read": Fault(
        replace(inference, "reads", lambda call, tensor: False),
        DEPLOYED + layer("look", "Power", "d", "look"),
        TEST,
    ),
    "a normalization is folded that others look behind": Fault(
        lambda patch: (
            patch.setattr(folding.Users, "only", alone),
            patch.setattr(folding.Users, "of", only_makers),
        ),
        given("x", 2, 3, 6, 5) + convolution("b", "x", "b") + layer("bn", "BatchNorm", "b", "n")
        + layer("look", "Power", "b", "look"),
        TEST,
    ),
    "a constant is made of data": Fault(
        replace(constants.Constants, "is_parameter", anything_constant), DEPLOYED, TEST
    ),
    "a constant's maker is lost": Fault(
        replace(constants.Constants, "get", stale_constant), DEPLOYED, TEST
    ),
    "a parameter of a constant is written": Fault(changed_parameter, DEPLOYED, TEST),
    "a layer is taken for unread": Fault(
        change("drop unread results", without_lrn), DEPLOYED, TEST
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    fault = SEEN[name]
    build(fault.text, fault.backend(), **fault.options)  # without it, all is well
    fault.plant(monkeypatch)
    with pytest.raises(VerificationError):
        build(fault.text, fault.backend(), **fault.options)


def slope(value: float | None) -> Plant:
    """A convolution that is said to apply a ReLU applies one of this slope, or none."""
    return at(
        "fuse ReLU", 0, "convolution", "c2", lambda calls, i: setattr(calls[i], "relu", value)
    )


def swapped(program, channels, given):
    """Folds a normalization with its mean and its bias in each other's place."""
    exchanged = {"mean": given["bias"], "bias": given["mean"]}
    return folding_affine(program, channels, given | exchanged)


NOT_SEEN = {
    "a fused ReLU is not applied": Fault(slope(None)),
    "a fused ReLU has another slope": Fault(slope(0.5)),
    "a sum is joined as if it had no coefficients": Fault(
        replace(batch_norm, "is_plain_sum", lambda call, terms: call.name == "sum"
                and len(call.xs) == terms),
        RESIDUAL.replace('top: "s" ', 'top: "s" eltwise_param { coeff: 1 coeff: -0.5 }'),
    ),
    "a folded mean is added": Fault(replace(folding, "_affine", swapped), DEPLOYED, TEST),
}  # fmt: skip
"""What a fused call computes: this shows in values only, beside those of a net without passes."""


def values(net: Net) -> list[np.ndarray]:
    """Outputs and gradients of a net after one iteration."""
    draw = np.random.default_rng(5)
    for each in net.parameters:
        drawn = draw.normal(size=each.blob.shape) * 0.3 + 0.1
        # Statistics: variances, and how many they are of, are positive.
        net.backend.write(each.blob.data, np.abs(drawn) if each.name[:2] == "bn" else drawn)
    for name in net.inputs:
        shape = net.blobs[name].shape
        net.write(name, draw.integers(0, 5, shape) if name == "label" else draw.normal(size=shape))
    net.forward()
    found = [net.read(name) for name in net.outputs]
    if net.phase == "TRAIN":
        net.backward()
        found += [net.backend.read(each.blob.diff) for each in net.parameters]
    return found


@pytest.mark.parametrize("name", NOT_SEEN)
def test_what_a_fused_call_computes_shows_in_values(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    fault = NOT_SEEN[name]
    without_passes = {"phase": fault.options["phase"], "inspectable": True}
    nets = [build(fault.text, fault.backend(), **fault.options)]
    fault.plant(monkeypatch)
    nets += [
        build(fault.text, fault.backend(), **options) for options in (fault.options, without_passes)
    ]
    right, wrong, plain = ([*map(np.copy, values(net))] for net in nets)
    for one, other in zip(right, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    assert any(np.abs(one - other).max() > 0.01 for one, other in zip(wrong, plain, strict=True))


@pytest.mark.parametrize("model", ["lenet", "cifar10_full", "edsr_baseline"])
def test_models_are_as_recorded(
    model: str, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SWITCH)
    net = str(root / "models" / model / "deploy.prototxt")
    assert main(["time", "--model", net, "--passes", "--verify"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("verified after each pass: ")
    assert int(last.split()[4]) > 100  # reads
