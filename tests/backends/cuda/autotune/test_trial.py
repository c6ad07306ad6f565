"""Candidates are tried on stand-ins that lie as a call's tensors do, with numbers in them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.autotune.trial import (
    SAMPLES,
    TRIAL_WORDS,
    Trial,
    _moments,
    trial_memory,
    trial_numbers,
)
from osucaffe.backends.cuda.call import Candidate, Context
from osucaffe.backends.cuda.layout import Layout
from osucaffe.backends.primitives.recording import Primitive, Read, Write, WriteOrAdd
from osucaffe.backends.tensor import Tensor

from ..simulated import compile_ptx, simulate


@pytest.mark.parametrize("nbytes", [2, 4 * TRIAL_WORDS, 20 * TRIAL_WORDS + 6])
def test_numbers_are_finite_in_every_type(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    backend = Cuda(precision="bf16")
    words = np.asarray(trial_memory(backend, nbytes)).view(np.uint32)
    assert words.nbytes == -(-nbytes // 4) * 4
    np.testing.assert_array_equal(words, np.resize(trial_numbers(), words.size))
    for values in words.view(np.float32), words.view(np.float16):
        assert np.isfinite(values).all()
        assert 2**-7 <= np.abs(values).min() <= np.abs(values).max() < 2
        assert words.size == 1 or (values < 0).any() > (values > 0).all()


class Work(Primitive, abstract=True):
    """A call that does anything."""

    x: Read | None
    w: Read | None
    b: Read | None
    y: Write | None
    dw: WriteOrAdd | None


def writing(backend: Any, y: Tensor) -> Context:
    """A call that writes y."""
    return Context(backend, Work(None, None, None, y, None))


def placed(backend: Any, tensor: Tensor) -> Tensor:
    backend.place(tensor, backend.allocate(backend.nbytes(tensor)), 0)
    return tensor


def test_a_trial_touches_no_tensor_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    backend = Cuda(precision="bf16")
    x, w = Tensor((2, 3, 4, 4), flexible=True), Tensor((5, 3, 1, 1), flexible=True)
    y = Tensor((2, 5, 4, 4), flexible=True)
    x.layout, w.layout = Layout(x.shape, "bfloat16", True), Layout(w.shape, "float32", True)
    for tensor in x, w, y:
        placed(backend, tensor)
    before = [np.array(each.array) for each in (x, w, y)]
    ctx = Context(backend, Work(x, w, None, y, None))
    seen: dict[str, Any] = {}

    def make(inner: Context) -> Any:
        call = inner.call
        seen["x"], seen["w"] = call.x, inner.low_precision(call.w)
        seen["y"], seen["scratch"] = call.y, inner.temporary((7,))
        return lambda: seen["y"].array.fill(1.0)

    trial = Trial(ctx)
    step = trial.step(Candidate("this", make))
    assert seen["x"] is not x
    assert seen["x"].layout == x.layout
    assert seen["w"].layout.dtype == "bfloat16"
    assert not backend._copies  # of the parameter itself there is none
    assert seen["scratch"].array is not None
    assert ctx.call.scratch == []
    trial.poison_outputs()
    assert np.isnan(seen["y"].array).all()
    step()
    assert (seen["y"].array == 1).all()
    for tensor, values in zip((x, w, y), before, strict=True):
        np.testing.assert_array_equal(tensor.array, values)


def test_outputs_that_are_added_to_begin_with_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulate(monkeypatch)
    backend = Cuda()
    call = Work(None, None, None, None, placed(backend, Tensor((40, 9))))
    call.accumulates = frozenset(["dw"])
    trial = Trial(Context(backend, call))
    for _ in range(2):
        trial.poison_outputs()
        values = trial._like.call.dw.array
        assert np.isfinite(values).all()
        np.testing.assert_array_equal(values.ravel(), trial_numbers().view(np.float32)[:360])
        values[...] = 5


def test_samples_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    backend = Cuda(precision="fp16")
    for dtype in "float32", "bfloat16", "float16":
        y = Tensor((8, 3, 2, 2), flexible=True)
        y.layout = Layout(y.shape, dtype, True)
        trial = Trial(writing(backend, placed(backend, y)))
        trial.sample()
        [found] = trial.samples()
        assert found.shape == (SAMPLES,)
    assert compile_ptx.cache_info().currsize


@pytest.mark.gpu
def test_the_16_bit_copy_of_a_parameter_has_its_numbers() -> None:
    backend = Cuda(precision="bf16")
    w, y = Tensor((64, 3, 3, 3), flexible=True), Tensor((4,))
    w.layout = Layout(w.shape, "float32", True)
    call = Work(None, placed(backend, w), None, placed(backend, y), None)
    trial = Trial(Context(backend, call))
    own, copy = trial._like.call.w, trial.low_precision(trial._like.call.w)
    np.testing.assert_allclose(backend.read(copy), backend.read(own), rtol=2**-8)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [10, SAMPLES, 10**6])
def test_samples_of_an_output(count: int) -> None:
    backend = Cuda()
    trial = Trial(writing(backend, placed(backend, Tensor((count,)))))
    values = np.arange(count, dtype=np.float32)
    backend.write(trial._like.call.y, values)
    trial.sample()
    [found] = trial.samples()
    if count <= SAMPLES:
        assert {*found} == {*values}
    else:
        assert len({*found}) > SAMPLES * 0.99
        assert found.max() > count * 0.99
    trial.sample()
    np.testing.assert_array_equal(found, trial.samples()[0])


def test_memory_is_given_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for Python's collector of cycles."""
    simulate(monkeypatch)
    backend = Cuda()
    y = placed(backend, Tensor((8, 3)))
    with Trial(writing(backend, y)) as trial:
        memory = weakref.ref(trial._like.call.y.array.base)
        assert memory() is not None
        del trial
    gc.disable()
    try:
        assert memory() is None
    finally:
        gc.enable()


def test_sums_are_compared_whatever_the_parts() -> None:
    """A channel's numbers in two parts or in three, one of them empty; each with a shift."""
    numbers = np.random.default_rng(3).normal(5, 2, size=(12, 4))

    def sums(*cuts: int) -> np.ndarray:
        parts = np.split(numbers, cuts)
        apart = [(part[:1].sum(axis=0), part - part[:1].sum(axis=0)) for part in parts]
        rows = [
            (less.sum(axis=0), (less**2).sum(axis=0), shift, np.full(4, len(less)))
            for shift, less in apart
        ]
        return np.float32(np.stack(rows, axis=1))

    wanted = np.stack([numbers.mean(axis=0), numbers.std(axis=0)])
    empty = sums(7, 12)
    empty[:3, 2] = np.nan  # what was never written
    for each in sums(5), sums(2, 9), empty:
        np.testing.assert_allclose(_moments(each), wanted, rtol=1e-5)
