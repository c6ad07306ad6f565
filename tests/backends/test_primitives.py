"""Every primitive, by its name, on every backend, against plain versions in float64.

A new backend joins with one entry in VARIANTS, a new primitive with its cases in `cases_*.py`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import osucaffe
from osucaffe.backends import primitives as ops
from osucaffe.backends.cpu import Cpu
from osucaffe.backends.primitives import PRIMITIVES, Program
from osucaffe.backends.tensor import Tensor
from tests.backends import cases_layers, cases_plain, cases_recurrent
from tests.backends.cases import CASES, STATE, Case, normal
from tests.backends.running import Output, run_call
from tests.forks.rcnn import cases as rcnn
from tests.forks.segmentation import cases as segmentation
from tests.forks.ssd import cases as ssd

for path in (Path(osucaffe.__file__).parent / "forks").glob("*/primitives.py"):
    importlib.import_module(f"osucaffe.forks.{path.parent.name}.primitives")


def with_onednn() -> Cpu:
    """The CPU backend, or no test where there is no oneDNN."""
    backend = Cpu()
    if backend.onednn is None:
        pytest.skip("no oneDNN library here")
    return backend


def as_in_training() -> Cpu:
    """oneDNN with the layouts of nets that run backward, whatever the calls."""
    backend = with_onednn()
    backend.onednn.analyze = lambda calls: None
    return backend


def with_gpu(precision: str) -> Callable[[], Any]:
    """Makes the CUDA backend, with this precision."""

    def make() -> Any:
        from osucaffe.backends.cuda import Cuda

        return Cuda(precision=precision)

    return make


@dataclass(frozen=True)
class Variant:
    """A backend, how it gets its tensors (see `Runner`), and its error relative to the largest."""

    make: Callable[[], Any]
    flexible: bool = True
    convolved: bool = False
    tolerance: float = 1e-5

    @functools.cached_property
    def backend(self) -> Any:
        backend = self.make()
        backend.random = STATE
        return backend


VARIANTS = [
    pytest.param(Variant(lambda: Cpu(onednn=False)), id="numpy"),
    pytest.param(Variant(lambda: Cpu("float64"), tolerance=1e-7), id="numpy float64"),
    pytest.param(Variant(with_onednn, flexible=False), id="onednn"),
    pytest.param(Variant(with_onednn), id="onednn blocked"),
    pytest.param(Variant(as_in_training, convolved=True), id="onednn behind convolutions"),
    pytest.param(Variant(with_gpu("fp32"), flexible=False), id="cuda", marks=pytest.mark.gpu),
    pytest.param(Variant(with_gpu("fp32")), id="cuda free", marks=pytest.mark.gpu),
    pytest.param(Variant(with_gpu("tf32"), tolerance=2e-3), id="cuda tf32", marks=pytest.mark.gpu),
    pytest.param(Variant(with_gpu("fp16"), tolerance=4e-3), id="cuda fp16", marks=pytest.mark.gpu),
    pytest.param(Variant(with_gpu("bf16"), tolerance=3e-2), id="cuda bf16", marks=pytest.mark.gpu),
]
"""The 16-bit formats hold 11 and 8 bits of a number: inputs and results are rounded to these."""


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Variant:
    return request.param


for define in (
    cases_plain.movement_cases, cases_plain.record_cases, cases_plain.elementwise_cases,
    cases_plain.broadcast_cases, cases_plain.dropout_cases, cases_plain.solver_cases,
    cases_layers.convolution_cases,
    cases_layers.inner_product_cases, cases_layers.pooling_cases,
    cases_layers.normalization_cases, cases_layers.batch_norm_cases,
    cases_layers.batch_norm_pooling_cases,
    cases_layers.loss_cases, segmentation.unpooling_cases, segmentation.resize_bilinear_cases,
    cases_recurrent.recurrent_cases, ssd.box_cases, rcnn.region_cases,
):  # fmt: skip
    define()


def assert_close(found: Any, wanted: Any, tolerance: float, what: str) -> None:
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape, what
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), err_msg=what)
    scale = np.max(np.abs(wanted), initial=1e-3, where=~np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale, err_msg=what)


@pytest.mark.parametrize("each", CASES, ids=lambda case: f"{case.name}: {case.label}".strip(": "))
def test_primitive(each: Case, variant: Variant) -> None:
    found = run_call(
        variant.backend,
        each.name,
        each.tensors,
        each.settings,
        flexible=variant.flexible,
        convolved=variant.convolved,
        first=each.first,
    )
    for argument, wanted in each.expected.items():
        if isinstance(each.tensors[argument], list):
            for i, (got, want) in enumerate(zip(found[argument], wanted, strict=True)):
                if want is not None:
                    assert_close(got, want, variant.tolerance, f"{argument}[{i}]")
        else:
            assert_close(found[argument], wanted, variant.tolerance, argument)


def test_every_primitive_has_a_case() -> None:
    assert {each.name for each in CASES} | {"host"} == set(PRIMITIVES)


ADDING = {
    name: [field for field, role in kind.roles.items() if role == "WriteOrAdd"]
    for name, kind in PRIMITIVES.items()
    if "WriteOrAdd" in kind.roles.values()
}
"""What each primitive may be asked to add to."""


@pytest.mark.parametrize("name", ADDING)
@pytest.mark.parametrize("which", [slice(1), slice(2), slice(1, 2)], ids=["first", "all", "second"])
def test_gradients_are_added_when_the_call_accumulates(
    name: str, which: slice, variant: Variant
) -> None:
    each = next(case for case in CASES if case.name == name)
    before = {
        argument: normal(*spec.shape)
        for argument in ADDING[name]
        if isinstance(spec := each.tensors.get(argument), Output)
    }
    added = tuple(argument for argument in ADDING[name][which] if argument in before)
    found = run_call(
        variant.backend, name, each.tensors | before, each.settings,
        flexible=variant.flexible, convolved=variant.convolved, first=each.first,
        accumulates=added,
    )  # fmt: skip
    for argument, gradient in each.expected.items():
        wanted = gradient + before[argument] if argument in added else gradient
        assert_close(found[argument], wanted, variant.tolerance, argument)


def test_what_fusion_gives_is_declared() -> None:
    from osucaffe.backends.cuda import Cuda

    for kind in Cuda.fuses_relu_backward:
        if kind is ops.MaxPoolingBackward:
            assert ops.MaxPooling.roles["after_relu"] == "FusedFlag"
        else:
            assert kind.roles["relu_output"].startswith("Fused")
    x, y = Tensor((1,)), Tensor((1,))
    with pytest.raises(ValueError, match="only the fusion pass"):
        Program().sum([x], y, x)
