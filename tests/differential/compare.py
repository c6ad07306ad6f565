"""The comparison of a net's runs, in every configuration, with what they should come to.

A configuration builds a Net one way, runs it, and yields values by key; a key ("train/0/gradient/
conv_1.0") means the same in each. What is expected comes from the reference, with the spread that
rounding gives it: from float64 runs with noise, so that no tolerance is set by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from osucaffe.backends.backend import Backend
from osucaffe.backends.random import RandomState, call_key, keep_threshold, squares32
from osucaffe.backends.tensor import Step, sequence
from osucaffe.blob import Blob
from osucaffe.errors import UserError
from osucaffe.layers.base import Layer
from osucaffe.net import Net
from osucaffe.parallel.buckets import lowest_layers
from osucaffe.proto import caffe_pb2

from .random_nets.generate import values_of, weights_of
from .random_nets.growing import Shape

SEED = 7
EPS = {"fp32": 1e-7, "tf32": 5e-4, "bf16": 2e-3}
"""Of the noise, by precision: how far one number is rounded, relative to itself."""
FACTOR = {"fp32": 64.0, "tf32": 16.0, "bf16": 16.0}
"""So many times the spread is allowed: it is the greatest of few draws, and sums of many equal
numbers round all to one side (less so in the narrow formats: these add in float32)."""
DRAWS, MORE_DRAWS = 2, 100
"""Of the noise, for each net and before a value is called wrong: what bfloat16's rounding decides
(which of two scores is the greater) may go the other way in one draw of twenty only."""
HUGE, INFINITE = 1e18, 3e38
"""What is not compared any more, and what no float32 holds."""
Values = Iterator[tuple[str, np.ndarray]]
Key = tuple[str, int]


class Difference(NamedTuple):
    """A value that is not as it should be."""

    config: str
    key: str
    text: str


class Expected(NamedTuple):
    """What a value should be, and by how much rounding moves it."""

    exact: np.ndarray
    spread: float

    def allows(self, error: float, precision: str) -> bool:
        """Whether rounding explains an error: no value is nearer than its own rounding is."""
        spread = max(self.spread, EPS[precision] * size(self.exact))
        return bool(spread == np.inf or error <= FACTOR[precision] * spread + 1e-30)


class Subject:
    """A net with its values: what the configurations and the reference are given."""

    def __init__(self, param: caffe_pb2.NetParameter) -> None:
        self.param = param
        self.shapes: dict[str, Shape] = {
            each.top[0]: tuple(each.input_param.shape[0].dim)
            for each in param.layer
            if each.type == "Input"
        }
        first = next(iter(self.shapes.values()))[:1]
        batch = (*first, 0)[0]
        self.other = {
            name: (batch + 1, *shape[1:]) if shape[:1] == first else shape
            for name, shape in self.shapes.items()
        }
        tops = {top for each in param.layer for top in each.top}
        self.made = tops - set(self.shapes) - _overwritten(param)
        """The blobs to compare: not those of Splits, nor what changes after it was read."""
        self.recurs = any(each.type in ("RNN", "LSTM", "Lstm") for each in param.layer)
        self.draw = 0
        self.noise = 0.0
        """Of inputs and weights: for spreads without the reference."""
        self.keys: dict[str, int] = {}
        """Those of the layers' random numbers."""
        self.parameters: dict[Key, tuple[str, Shape, str]] = {}
        self.owners: dict[Key, Key] = {}
        """The parameter that stands for it (of those shared by name, the first)."""
        self.fixed: set[Key] = set()

    def learn(self, net: Net) -> None:
        """What a built net tells of its parameters."""
        named: dict[str, Key] = {}
        for layer in net.layers:
            self.keys[layer.name] = layer.key
            for index, blob in enumerate(layer.parameters):
                key, name = (layer.name, index), layer.spec(index).name
                self.parameters[key] = (layer.type, blob.shape, name)
                self.owners[key] = named.setdefault(name, key) if name else key
                if not layer.need_gradients[index] and not self.param.force_backward:
                    self.fixed.add(key)

    def _noisy(self, values: np.ndarray, name: str) -> np.ndarray:
        if not self.noise or name.startswith(("label", "keep", "some")):
            return values
        random = np.random.default_rng([self.draw, len(name), values.size])
        return (values * (1 + self.noise * random.standard_normal(values.shape))).astype(np.float32)

    def inputs(self, draw: int, shapes: Mapping[str, Shape]) -> dict[str, np.ndarray]:
        """The values of the inputs."""
        return {
            name: self._noisy(values_of(name, shape, draw), name) for name, shape in shapes.items()
        }

    def weights(self, draw: int) -> dict[Key, np.ndarray]:
        """The values of the parameters."""
        return {
            key: self._noisy(weights_of(kind, *key, shape, draw), "")
            for key, (kind, shape, _) in self.parameters.items()
            if self.owners[key] == key
        }

    def mask(self, name: str, shape: Shape, step: int) -> np.ndarray:
        """Which elements a Dropout keeps in a pass, counted from 0."""
        size = int(np.prod(shape))
        ratio = next(e.dropout_param.dropout_ratio for e in self.param.layer if e.name == name)
        numbers = [np.empty(size, np.uint64) for _ in range(4)]
        counter = RandomState(SEED, step + 1).counter(size, 0)
        squares32(counter, call_key(SEED, self.keys[name]), numbers[0], numbers[1:])
        return (numbers[0] >= keep_threshold(ratio)).reshape(shape)


def _overwritten(param: caffe_pb2.NetParameter) -> set[str]:
    """Blobs that change after they were read: Reshape and Flatten share memory, as in Caffe, and
    behind them a layer works in place."""
    shown: dict[str, str] = {}
    found: set[str] = set()
    for layer in param.layer:
        if layer.type in ("Reshape", "Flatten"):
            shown[layer.top[0]] = layer.bottom[0]
        for name in set(layer.top) & set(layer.bottom):
            while name in shown:
                name = shown[name]
                found.add(name)
    return found


# -- configurations --------------------------------------------------------------------------------


class Run:
    """A built net, and what is read from it."""

    def __init__(self, subject: Subject, backend: Backend, phase: str, **settings: Any) -> None:
        self.subject, self.backend = subject, backend
        self.net = Net(subject.param, backend=backend, phase=phase, seed=SEED, **settings)
        subject.learn(self.net)
        self.write_weights(0)

    def write_weights(self, draw: int) -> None:
        """Give all parameters their values."""
        values = self.subject.weights(draw)
        for layer in self.net.layers:
            for index, blob in enumerate(layer.parameters):
                key = (layer.name, index)
                if self.subject.owners[key] == key:
                    self.backend.write(blob.data, values[key])
        self.net.refresh()

    def give(self, draw: int, shapes: Mapping[str, Shape] | None = None) -> None:
        """Write the inputs of a pass."""
        for name, values in self.subject.inputs(draw, shapes or self.subject.shapes).items():
            self.net.write(name, values)

    def blobs(self, prefix: str, *, every: bool = False) -> Values:
        """The outputs, or all blobs, that have a name of the prototxt."""
        names = self.net.blobs if every else self.net.outputs
        for name in dict.fromkeys(names):
            if name in self.subject.made:
                yield f"{prefix}/blob/{name}", self.net.read(name)

    def gradients(self, prefix: str, *, inputs: bool = False) -> Values:
        """Those of the parameters, and of the inputs."""
        for layer, index, key in self.own():
            if key not in self.subject.fixed:
                diff = self.backend.read(layer.parameters[index].diff)
                yield f"{prefix}/gradient/{layer.name}.{index}", diff
        if inputs and self.subject.param.force_backward:
            for name in self.subject.shapes:
                if name.startswith(("real", "in", "t")):
                    yield f"{prefix}/input/{name}", self.backend.read(self.net.blobs[name].diff)

    def when_complete(self, prefix: str, found: dict[str, np.ndarray]) -> dict[int, Step]:
        """What reads each gradient behind the layer with which parallel/ takes it for complete."""
        lowest = lowest_layers(self.net)
        steps: dict[int, list[Step]] = {}

        def note(name: str, blob: Blob) -> None:
            found[name] = self.backend.read(blob.diff)

        for layer, index, key in self.own():
            blob = layer.parameters[index]
            if key not in self.subject.fixed:
                name = f"{prefix}/gradient/{layer.name}.{index}"
                steps.setdefault(lowest[id(blob)], []).append(partial(note, name, blob))
        return {layer: sequence(each) for layer, each in steps.items()}

    def own(self) -> Iterator[tuple[Layer, int, Key]]:
        """All parameters but those that are another's."""
        for layer in self.net.layers:
            for index in range(len(layer.parameters)):
                if self.subject.owners[layer.name, index] == (layer.name, index):
                    yield layer, index, (layer.name, index)

    def statistics(self, prefix: str) -> Values:
        """The parameters that forward passes change."""
        for layer, index, _ in self.own():
            if index in layer.statistics:
                value = self.backend.read(layer.parameters[index].data)
                yield f"{prefix}/statistic/{layer.name}.{index}", value


def inspectable(subject: Subject, backend: Backend) -> Values:
    """Every blob and gradient of two passes, the second one's gradients added."""
    run = Run(subject, backend, "TRAIN", inspectable=True)
    for draw in range(2):
        run.give(draw)
        run.net.forward()
        run.net.backward(accumulate=draw > 0)
        yield from run.blobs(f"train/{draw}", every=True)
        yield from run.gradients(f"train/{draw if draw == 0 else 'sum'}", inputs=draw == 0)
    yield from run.statistics("train/1")


def planned(subject: Subject, backend: Backend) -> Values:
    """Two passes in another's memory, one of another batch, and the first one again."""
    run = Run(subject, backend, "TRAIN")
    for draw in range(2):
        run.give(draw)
        run.net.forward()
        run.net.backward()
        yield from run.blobs(f"train/{draw}")
        yield from run.gradients(f"train/{draw}")
    yield from run.statistics("train/1")
    if subject.recurs:  # states live on
        return
    for prefix, shapes in (("other/0", subject.other), ("train/0", subject.shapes)):
        try:
            run.net.reshape(shapes)
        except UserError:
            return
        run.net.random.step = 0
        run.write_weights(0)
        run.give(0, shapes)
        run.net.forward()
        run.net.backward()
        yield from run.blobs(prefix)
        yield from run.gradients(prefix)


def accumulate(subject: Subject, backend: Backend) -> Values:
    """The gradients of two passes added up, each pass as one step (captured, on a GPU); and again,
    with gradients read when they are said to be complete, as several ranks do."""
    run = Run(subject, backend, "TRAIN", accumulate=True)
    steps = [run.net.as_step(), run.net.as_step(accumulate=True)]
    read: dict[str, np.ndarray] = {}
    for repeat in range(1 if subject.recurs else 2):  # states live on
        run.net.random.step = 0
        run.write_weights(0)
        for draw, step in enumerate(steps):
            run.give(draw)
            step()
            yield from run.blobs(f"train/{draw}")
            yield from run.gradients("train/sum" if draw else "train/0")
        yield from run.statistics("train/1")
        yield from list(read.items())
        if not repeat:
            after = run.when_complete("train/sum", read)
            steps[1] = run.net.as_step(accumulate=True, after=after, enqueues=False)


def sharing(subject: Subject, backend: Backend) -> Values:
    """A pass as one step (captured, on a GPU), and a test net whose shapes change: the memory that
    they share grows in between, and moves."""
    run = Run(subject, backend, "TRAIN")
    step = run.net.as_step()
    tested: Run | None = None
    for prefix, shapes in (
        ("", {}), ("", {}), ("test/0", subject.shapes), ("test/other", subject.other),
    ):  # fmt: skip
        if prefix:
            tested = tested or Run(subject, backend, "TEST", share=run.net)
            try:
                tested.net.reshape(shapes)
            except UserError:
                return
            run.write_weights(0)
            tested.give(0, shapes)
            tested.net.forward()
            if prefix == "test/0":
                yield from tested.blobs(prefix)
        run.net.random.step = 0
        run.write_weights(0)
        run.give(0)
        step()
        yield from run.blobs("train/0")
        yield from run.gradients("train/0")
        if subject.recurs:  # states live on
            return


def inference(subject: Subject, backend: Backend) -> Values:
    """Forward passes with constants folded: of some weights, of others, of another batch."""
    run = Run(subject, backend, "TEST", inference=True)
    for prefix, weights, shapes in (
        ("test/0", 0, subject.shapes),
        ("test/1", 1, subject.shapes),
        ("test/other", 1, subject.other),
        ("test/0", 0, subject.shapes),
    ):
        try:
            run.net.reshape(shapes)
        except UserError:
            continue
        run.write_weights(weights)
        run.give(0, shapes)
        run.net.forward()
        yield from run.blobs(prefix)
        if subject.recurs:
            return


def testing(subject: Subject, backend: Backend) -> Values:
    """A net of the TEST phase whose blobs can be looked at, with gradients."""
    run = Run(subject, backend, "TEST", inspectable=True)
    run.give(0)
    run.net.forward()
    run.net.backward()
    yield from run.blobs("test/0", every=True)
    yield from run.gradients("test/0", inputs=True)
    if subject.recurs:
        return
    run.write_weights(1)
    run.net.forward()
    yield from run.blobs("test/1", every=True)
    try:
        run.net.reshape(subject.other)
    except UserError:
        return
    run.give(0, subject.other)
    run.net.forward()
    yield from run.blobs("test/other", every=True)


CONFIGS: dict[str, Callable[[Subject, Backend], Values]] = {
    each.__name__: each for each in (inspectable, planned, accumulate, sharing, inference, testing)
}


def chosen(number: int) -> list[str]:
    """The configurations of a net where time is short: all of them in two nets."""
    others = ("planned", "inference"), ("accumulate", "sharing", "testing")
    return ["inspectable", *others[number % 2]]


def run_config(name: str, subject: Subject, backend: Backend) -> list[tuple[str, np.ndarray]]:
    """All values of a configuration."""
    return list(CONFIGS[name](subject, backend))


# -- what is expected ------------------------------------------------------------------------------


class Reference:
    """What is expected of a net, group by group of keys, as they are asked for."""

    def __init__(self, subject: Subject, eps: float) -> None:
        self.subject, self.eps = subject, eps
        self.known: dict[str, dict[str, Expected]] = {}
        self._beside: dict[str, Reference] = {}
        """By group, once it is widened: one whose spread is that of a greater noise alone."""

    def expected(self, key: str) -> Expected | None:
        """Of a key; None where it is not known."""
        group = _group(key)
        if group not in self.known:
            exact = self._compute(group, 0.0, 0)
            self.known[group] = {name: Expected(value, 0.0) for name, value in exact.items()}
            self.widen(group, range(1, 1 + DRAWS))
        return self.known[group].get(key)

    def overflows(self, group: str) -> bool:
        """Whether a value of the group is no float32: what comes of it may be NaN."""
        return not all(size(each.exact) < INFINITE for each in self.known[group].values())

    def widen(self, group: str, draws: range, eps: float | None = None) -> None:
        """Take in how far further runs with noise come to lie from the exact one."""
        known = self.known[group]
        for draw in draws:
            for name, value in self._compute(group, eps or self.eps, draw).items():
                exact, spread = known[name]
                if value.shape == exact.shape:
                    known[name] = Expected(exact, max(spread, distance(value, exact)))

    def wider(self, key: str) -> Expected:
        """Of a key, with the spread of many more runs."""
        group = _group(key)
        if group not in self._beside:
            self._beside[group] = Reference(self.subject, self.eps)
            self.widen(group, range(100, 100 + MORE_DRAWS))
        return self.known[group][key]

    def nearby(self, key: str) -> float:
        """The spread of a key, after `wider`, with 30 times the noise."""
        group, beside = _group(key), self._beside[_group(key)]
        if group not in beside.known:
            beside.known[group] = {k: Expected(e.exact, 0.0) for k, e in self.known[group].items()}
            beside.widen(group, range(200, 200 + MORE_DRAWS), 30 * self.eps)
        return beside.known[group][key].spread

    def _compute(self, group: str, eps: float, seed: int) -> dict[str, np.ndarray]:
        from .reference.run import Context, run

        subject = self.subject
        shapes = subject.other if "other" in group else subject.shapes
        weights = 0 if group in ("train", "other", "test/0") else 1
        draws = (0, 1) if group == "train" else (0,)
        phase = "TEST" if group.startswith("test") else "TRAIN"
        passes = run(
            subject.param,
            Context(phase, subject.mask, eps, seed),
            subject.weights(weights),
            [subject.inputs(draw, shapes) for draw in draws],
            subject.owners,
            gradients=weights == 0,
        )
        found: dict[str, np.ndarray] = {}
        for number, one in enumerate(passes):
            prefix = {"train": f"train/{number}", "other": "other/0"}.get(group, group)
            found.update({f"{prefix}/blob/{name}": each for name, each in one.blobs.items()})
            found.update({f"{prefix}/input/{name}": each for name, each in one.inputs.items()})
            for kind, values in ("gradient", one.gradients), ("statistic", one.statistics):
                found.update({f"{prefix}/{kind}/{k[0]}.{k[1]}": v for k, v in values.items()})
        for key, value in passes[0].gradients.items() if len(passes) > 1 else ():
            total = value + passes[1].gradients[key]
            found[f"train/sum/gradient/{key[0]}.{key[1]}"] = total
        return found


class Ourselves:
    """What is expected where there is no reference: what an inspectable net comes to, with the
    spread of its own runs with noise in inputs and weights."""

    def __init__(self, subject: Subject, backend: Backend, eps: float) -> None:
        self.subject, self.backend, self.eps = subject, backend, eps
        self.known: dict[str, dict[str, Expected]] = {}

    def expected(self, key: str) -> Expected | None:
        """Of a key; None where it is not known."""
        name = "testing" if key.startswith("test") else "inspectable"
        if name not in self.known:
            values = run_config(name, self.subject, self.backend)
            known = self.known[name] = {
                each: Expected(value.astype(np.float64), 0.0) for each, value in values
            }
            self.subject.noise = self.eps
            for self.subject.draw in range(1, 1 + DRAWS):
                for each, value in run_config(name, self.subject, self.backend):
                    exact, spread = known[each]
                    known[each] = Expected(exact, max(spread, distance(value, exact)))
            self.subject.noise = 0.0
        return self.known[name].get(key)


def _group(key: str) -> str:
    first, second, *_ = key.split("/")
    return f"{first}/{second}" if first == "test" else first


def size(value: np.ndarray) -> float:
    """The greatest magnitude."""
    return float(np.abs(value).max(initial=0.0))


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The greatest difference."""
    return size(np.asarray(a, np.float64) - b)


class Result(NamedTuple):
    """Of a net: what differs; how many values were compared in each configuration; what was
    explained, and by what."""

    differences: list[Difference]
    compared: dict[str, int]
    explained: dict[str, int]


def check(
    param: caffe_pb2.NetParameter,
    backend: Backend,
    *,
    precision: str = "fp32",
    configs: Sequence[str] = tuple(CONFIGS),
    with_reference: bool = True,
    stored: int | None = None,
) -> Result:
    """Run a net in each configuration, and compare: with the reference, with what is stored of a
    net of this number, or else with itself."""
    subject, eps = Subject(param), EPS[precision]
    result = Result([], {}, {})
    source: Reference | Ourselves = Ourselves(subject, backend, eps)
    if with_reference:
        source = Reference(subject, eps)
    for config in configs:
        try:
            values = run_config(config, subject, backend)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            result.differences.append(Difference(config, "", text))
            continue
        result.compared[config] = len(values)
        for key, value in values:
            if stored is None:
                text, explanation = _compare(source, key, value, precision)
            else:
                text, explanation = _compare_stored(stored, key, value), ""
            if text:
                result.differences.append(Difference(config, key, text))
            if explanation:
                result.explained[explanation] = result.explained.get(explanation, 0) + 1
    return result


def _compare_stored(number: int, key: str, value: np.ndarray) -> str:
    """What differs from the projections that are stored."""
    from .stored import Stored, project

    expected = Stored(number).expected(key, value.shape)
    if expected is None:
        return f"nothing is stored for shape {value.shape}"
    error = distance(project(key, value), expected.exact)
    if expected.allows(error, "fp32"):
        return ""
    return f"its projections differ by {error:.2g} (spread {expected.spread:.2g})"


def _compare(source: Any, key: str, value: np.ndarray, precision: str) -> tuple[str, str]:
    """What differs, or else what explains that it does."""
    expected = source.expected(key)
    if expected is None:
        without = isinstance(source, Ourselves)
        return ("", "without a reference") if without else ("the reference has none", "")
    exact = expected.exact
    if value.shape != exact.shape:
        return f"shape {value.shape} instead of {exact.shape}", ""
    if not size(exact) < HUGE:
        return "", "overflow"
    error = distance(value, exact) if np.isfinite(value).all() else np.inf
    if error == np.inf and isinstance(source, Reference) and source.overflows(_group(key)):
        return "", "overflow"
    if expected.allows(error, precision):
        return "", ""
    if isinstance(source, Reference) and np.isfinite(error):
        expected = source.wider(key)
        if expected.allows(error, precision):
            return "", "rounding"
        wide = source.nearby(key)
        if error <= 2 * wide and wide > 10 * 30 * expected.spread:
            return "", "a step nearby"
    at = int(np.argmax(np.abs(value - exact))) if value.size else 0
    told = f"{value.flat[at]:.7g} instead of {exact.flat[at]:.7g} at {at} of {value.shape}"
    return f"{told} (difference {error:.2g}, spread {expected.spread:.2g})", ""
