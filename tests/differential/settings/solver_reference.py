"""The reference of solvers: Caffe's training in NumPy in float64, and how near one must come.

The files that its comments name are C++ Caffe's, from which the definitions are.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from osucaffe.proto import SolverParameter, parse_text

from ..search import Case
from .solver_cases import layers, multipliers, solver_text

ROUNDING = {"float32": 2.0**-23, "float64": 2.0**-52}


FORMULAS: dict[str, Callable[[SolverParameter, int], float]] = {
    "fixed": lambda p, t: p.base_lr,
    "step": lambda p, t: p.base_lr * p.gamma ** (t // p.stepsize),
    "exp": lambda p, t: p.base_lr * p.gamma**t,
    "inv": lambda p, t: p.base_lr * (1 + p.gamma * t) ** -p.power,
    "poly": lambda p, t: p.min_lr + (p.base_lr - p.min_lr) * (1 - t / p.max_iter) ** p.power,
    "sigmoid": lambda p, t: p.base_lr / (1 + math.exp(-p.gamma * (t - p.stepsize))),
}
"""The learning rate by policy, where the iteration alone decides it."""


@dataclass
class Course:
    """What came of training: the values of parameters and history at its end; by iteration the
    rates and smoothed losses that were displayed, and the test losses."""

    weights: list[np.ndarray] = field(default_factory=list)
    history: list[np.ndarray] = field(default_factory=list)
    displays: list[tuple[int, float, float]] = field(default_factory=list)
    tests: list[tuple[int, float]] = field(default_factory=list)

    def numbers(self) -> Iterator[tuple[str, np.ndarray]]:
        """All of it, by name."""
        for name in "weights", "history":
            for place, array in enumerate(getattr(self, name)):
                yield f"{name} {place}", np.asarray(array, np.float64)
        for name in "displays", "tests":
            yield name, np.array(getattr(self, name), np.float64)


class Reference:
    """Caffe's training in float64. noise: by how much every intermediate value is off, as a part
    of the largest beside it. ranks: of how many ranks' batches an iteration is."""

    def __init__(
        self, case: Case, data: tuple[np.ndarray, np.ndarray], weights: list[np.ndarray],
        noise: float = 0.0, ranks: int = 1,
    ) -> None:  # fmt: skip
        self.case, self.data = case, data
        self.param = parse_text(solver_text(case), SolverParameter)
        self.layers = layers(case)
        self.weights = [each.astype(np.float64) for each in weights]
        self.noise, self.random = noise, np.random.default_rng(3)
        self.ranks = ranks
        self.places = {"TRAIN": 0, "TEST": 0}
        count = 2 if self.param.type in ("AdaDelta", "Adam", "LAMB") else 1
        self.history = [[np.zeros_like(each) for each in self.weights] for _ in range(count)]
        self.step = 0
        self.best = [math.inf, 0.0]

    def rough(self, values: np.ndarray) -> np.ndarray:
        """The values, as rounding might leave them."""
        if not self.noise:
            return values
        off = self.random.standard_normal(np.shape(values)) * self.noise
        return values + off * np.abs(values).max(initial=0)

    def rough_squares(self, values: np.ndarray) -> np.ndarray:
        """The same of what is not negative, and has a root."""
        return np.abs(self.rough(values))

    def batch(self, phase: str) -> tuple[np.ndarray, np.ndarray]:
        size = (
            self.case["net.batch"] * self.ranks if phase == "TRAIN" else self.case["net.test_batch"]
        )
        rows = (self.places[phase] + np.arange(size)) % len(self.data[0])
        self.places[phase] += size
        return self.data[0][rows], self.data[1][rows]

    def forward(self, phase: str) -> tuple[float, dict[str, np.ndarray]]:
        x, y = self.batch(phase)
        blobs, loss = {"x": x, "y": y}, 0.0
        for layer in self.layers:
            out = blobs[layer.bottom] @ self.weights[layer.parameters[0]].T
            if len(layer.parameters) > 1:
                out = out + self.weights[layer.parameters[1]]
            out = self.rough(out)
            if layer.activation == "TanH":
                out = self.rough(np.tanh(out))
            if layer.activation == "Sigmoid":
                out = self.rough(1 / (1 + np.exp(-out)))
            blobs[layer.top] = out
            if layer.loss:
                loss += layer.loss * float(np.sum((out - y) ** 2)) / (2 * len(y))
        return loss, blobs

    def backward(self, blobs: dict[str, np.ndarray], gradients: list[np.ndarray]) -> None:
        """Add the gradients of a batch; of parameters that learn nothing none is computed."""
        diffs: dict[str, np.ndarray] = {}
        for layer in reversed(self.layers):
            top = blobs[layer.top]
            diff = diffs.get(layer.top, np.zeros_like(top))
            if layer.loss:
                diff = diff + layer.loss * (top - blobs["y"]) / len(top)
            if layer.activation == "TanH":
                diff = diff * (1 - top**2)
            if layer.activation == "Sigmoid":
                diff = diff * top * (1 - top)
            diff, bottom = self.rough(diff), blobs[layer.bottom]
            parts = [diff.T @ bottom, diff.sum(axis=0)]
            for number, part in zip(layer.parameters, parts, strict=False):
                if multipliers(self.case, number)[0]:
                    gradients[number] += self.rough(part)
            below = diff @ self.weights[layer.parameters[0]]
            diffs[layer.bottom] = diffs.get(layer.bottom, 0) + self.rough(below)

    def rate(self, t: int, smoothed: float) -> float:
        """sgd_solver.cpp: GetLearningRate, and the forks' policies."""
        p = self.param
        if t < p.warmup_iter:  # Intel Caffe
            ahead = p.warmup_iter - t
            rate = (t * p.base_lr + ahead * p.warmup_start_lr) / p.warmup_iter
        elif t < p.rampup_interval:  # NVIDIA Caffe, as is the least rate
            part = t / p.rampup_interval
            rate = p.rampup_lr + (p.base_lr - p.rampup_lr) * part * part
        elif p.lr_policy in FORMULAS:
            rate = FORMULAS[p.lr_policy](p, t)
        elif p.lr_policy == "multistep":
            if self.step < len(p.stepvalue) and t >= p.stepvalue[self.step]:
                self.step += 1
            rate = p.base_lr * p.gamma**self.step
        elif p.lr_policy == "plateau":  # SSD; the loss is that of the iterations before
            if smoothed < self.best[0]:
                self.best = [smoothed, t]
            windows = [*p.plateau_winsize, math.inf]
            if t >= self.best[1] + windows[self.step]:
                self.step += 1
                self.best[1] = t
            rate = p.base_lr * p.gamma**self.step
        else:  # multifixed: caffe-yolo9000
            stage = 0
            while stage < len(p.stageiter) - 1 and t > p.stageiter[stage]:
                stage += 1
            return p.stagelr[stage]
        return max(rate, p.min_lr)

    def update(self, gradients: list[np.ndarray], rate: float, t: int) -> None:
        """sgd_solver.cpp: ApplyUpdate, and the rules of the other solvers."""
        p = self.param
        if p.type == "Adam":
            rate *= math.sqrt(1 - p.momentum2 ** (t + 1)) / (1 - p.momentum ** (t + 1))
        rate = float(np.float32(rate))  # as the backend has it
        norm = math.sqrt(sum(float(np.sum(each**2)) for each in gradients))
        if 0 <= p.clip_gradients < norm:
            gradients = [each * (p.clip_gradients / norm) for each in gradients]
        for number, gradient in enumerate(gradients):
            rate_factor, decay_factor = multipliers(self.case, number)
            if not rate_factor:
                continue
            w, h = self.weights[number], self.history[0][number]
            second = self.history[-1][number]
            g, decay = gradient / p.iter_size, p.weight_decay * decay_factor
            size, plain = math.sqrt(np.sum(w**2)), math.sqrt(np.sum(g**2))
            if p.type != "LAMB":
                g = self.rough(g + decay * (w if p.regularization_type == "L2" else np.sign(w)))
            local = rate * rate_factor
            if p.larc:  # NVIDIA Caffe, GetLocalRate; weight decay comes later on a GPU
                trust = p.larc_eta * size / plain if size > 0 and plain > 0 else 1.0
                local = rate * trust if p.larc_policy == "scale" else min(rate, trust)
            if p.local_lr_auto:  # Intel Caffe, GetLocalRate
                norm = math.sqrt(np.sum(g**2))
                below = norm + p.weight_decay * size
                local = rate * (p.local_gw_ratio * size / below if size > 0 and norm > 0 else 1.0)
            m = p.momentum
            if p.type == "SGD":
                h = m * h + local * g
                change = h
            elif p.type == "Nesterov":
                before, h = h, m * h + local * g
                change = (1 + m) * h - m * before
            elif p.type == "AdaGrad":
                h = h + g**2
                change = local * g / (np.sqrt(h) + p.delta)
            elif p.type == "RMSProp":
                h = p.rms_decay * h + (1 - p.rms_decay) * g**2
                change = local * g / (np.sqrt(h) + p.delta)
            elif p.type == "AdaDelta":
                h = m * h + (1 - m) * g**2
                change = g * np.sqrt((p.delta + second) / (p.delta + h))
                second = m * second + (1 - m) * change**2
                change = local * change
            else:
                h = m * h + (1 - m) * g
                second = p.momentum2 * second + (1 - p.momentum2) * g**2
                if p.type == "Adam":
                    change = local * h / (np.sqrt(second) + p.delta)
                else:  # You et al., algorithm 2; corrections as the backend has them
                    mean = h * float(np.float32(1 / (1 - m ** (t + 1))))
                    root = np.float32(1 / math.sqrt(1 - p.momentum2 ** (t + 1)))
                    change = mean / (np.sqrt(second) * float(root) + p.delta)
                    change = self.rough(change) + decay * w
                    norm = math.sqrt(np.sum(change**2))
                    change = local * (size / norm if size > 0 and norm > 0 else 1.0) * change
            self.history[-1][number] = self.rough_squares(second)
            of_squares = p.type in ("AdaGrad", "RMSProp", "AdaDelta")
            self.history[0][number] = self.rough_squares(h) if of_squares else self.rough(h)
            self.weights[number] = self.rough(w - self.rough(change))

    def train(self, iterations: int) -> Course:
        """solver.cpp: Step."""
        p, course, losses = self.param, Course(), deque[float](maxlen=self.param.average_loss)
        smoothed = math.nan
        for t in range(iterations):
            if p.test_interval and t % p.test_interval == 0 and (t or p.test_initialization):
                passes = [self.forward("TEST")[0] for _ in range(p.test_iter[0])]
                course.tests.append((t, sum(passes) / len(passes)))
            gradients, loss = [np.zeros_like(each) for each in self.weights], 0.0
            for _ in range(p.iter_size):
                one, blobs = self.forward("TRAIN")
                loss += one / p.iter_size
                self.backward(blobs, gradients)
            rate = self.rate(t, smoothed)
            losses.append(loss)
            smoothed = sum(losses) / len(losses)
            if p.display and t % p.display == 0:
                course.displays.append((t, rate, smoothed))
            self.update(gradients, rate, t)
        course.weights = self.weights
        course.history = [each for part in self.history for each in part]
        return course


def courses(
    case: Case, data: tuple[np.ndarray, np.ndarray], weights: list[np.ndarray], ranks: int = 1
) -> Iterator[Course]:
    """The course of a case, and others that are off by roundings."""
    for size in 0, 1, -1, 2:
        noise = size * ROUNDING[case["run.dtype"]]
        with np.errstate(all="ignore"):
            yield Reference(case, data, weights, noise, ranks).train(case["run.iterations"])


def diverges(course: Course) -> bool:
    """Whether the settings were of no use: rounding alone decides what becomes of such a net."""
    return not all(np.abs(values).max(initial=0) < 100 for _, values in course.numbers())


def compare(found: Course, references: list[Course], rounding: float) -> None:
    """AssertionError unless what was found is as near to the first as rounding lets it be: the
    others say how far that is."""
    names = [name for name, _ in found.numbers()]
    for name, got, want, *others in zip(
        names, *(list(dict(each.numbers()).values()) for each in (found, *references)), strict=True
    ):
        assert got.shape == want.shape, f"{name}: of shape {got.shape}, not {want.shape}"
        size = np.abs(want).max(initial=0, axis=0 if name in ("displays", "tests") else None)
        off = np.max([np.abs(other - want) for other in others], axis=0)
        off = np.maximum(off, off.max(initial=0, axis=0 if name in ("displays", "tests") else None))
        error = np.abs(got - want) - (8 * off + 16 * rounding * size)
        assert (error <= 0).all(), f"{name}: {got} is not {want}, allowed is {8 * off}"
