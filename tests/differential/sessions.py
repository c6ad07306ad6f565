"""Random sessions of pycaffe: scripts of random calls, run with nets that take the fast way
and with nets that compute everything each time. `python -m tests.differential.sessions`."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import osucaffe.pycaffe as caffe
from osucaffe.pycaffe import settings

from .search import Case, Kind, main

CHAIN = """
input: "data" input_shape { dim: 2 dim: 3 dim: 6 dim: 7 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 5 kernel_size: 3 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "scale" type: "Scale" bottom: "bn" top: "scaled" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "scaled" top: "scaled" }
layer { name: "pool" type: "Pooling" bottom: "scaled" top: "pool"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 7 weight_filler { type: "gaussian" std: 0.3 } } }
"""
RESIDUAL = """
input: "data" input_shape { dim: 2 dim: 4 dim: 5 dim: 5 }
layer { name: "shift" type: "Power" bottom: "data" top: "data" power_param { shift: 0.5 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 pad: 1 bias_term: false
    weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "sum" type: "Eltwise" bottom: "conv" bottom: "data" top: "sum" }
layer { name: "relu" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "flat" type: "Flatten" bottom: "sum" top: "flat" }
layer { name: "drop" type: "Dropout" bottom: "flat" top: "drop" }
layer { name: "ip" type: "InnerProduct" bottom: "drop" top: "ip"
  inner_product_param { num_output: 6 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
TOWERS = """
input: "data" input_shape { dim: 2 dim: 6 } input: "side" input_shape { dim: 3 dim: 5 }
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1"
  inner_product_param { num_output: 64 weight_filler { type: "gaussian" std: 0.4 } } }
layer { name: "tanh" type: "TanH" bottom: "ip1" top: "tanh" }
layer { name: "ip" type: "InnerProduct" bottom: "tanh" top: "ip"
  inner_product_param { num_output: 64 weight_filler { type: "gaussian" std: 0.4 } } }
layer { name: "left" type: "InnerProduct" bottom: "side" top: "left"
  inner_product_param { num_output: 4 weight_filler { type: "gaussian" std: 0.4 } } }
layer { name: "square" type: "Power" bottom: "left" top: "square" power_param { power: 2 } }
layer { name: "bias" type: "Bias" bottom: "square" top: "right" }
"""
NETS = (CHAIN, RESIDUAL, TOWERS)

START = """
import ctypes, numpy as np

def values(seed, shape):
    random = np.random.default_rng(seed)
    exact = random.uniform(0.5, 1.5, shape) * np.where(seed % 2, 1, -1)
    return exact * (1 + jitter * random.standard_normal(shape))

def fill(net, seed):
    for name in net.inputs:
        net.blobs[name].data[...] = values(seed, net.blobs[name].data.shape)

def pointer(array):
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), array.size

def address(array):
    return array.ctypes.data, array.size

def numbers(where, size):
    return np.ctypeslib.as_array(ctypes.cast(where, ctypes.POINTER(ctypes.c_float)), (size,))

def see_gradient(array):
    see(array / (1 + abs(array).max()))

for number, each in enumerate((net, other)):
    fill(each, number)
    for name, blobs in each.params.items():
        for place, blob in enumerate(blobs):
            blob.data[...] = abs(values(place, blob.data.shape)) if name == "bn" else blob.data
"""
"""What every script begins with: `net` and `other`, of one file, are there, `see`, `folder` and
`jitter`, by which inputs are off."""

HOLD = {
    "{}": "{}",
    "{}[1:]": "{}",
    "{}.T": "{}",
    "{}.reshape(-1)": "{}",
    "[{}]": "{}[0]",
    "memoryview({})": "np.asarray({})",
    "np.asarray({})": "{}",
    "np.frombuffer({}, np.float32)": "{}",
    "pointer({})": "numbers(*{})",
    "address({})": "numbers(*{})",
}
"""How a script may keep what `data` is, and how it gets at the numbers again."""

Lines = list[str]


class Session:
    """A script of random calls about a net."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.net = self._random.randrange(len(NETS))
        net = caffe.Net(*_written(NETS[self.net]))
        self._blobs, self._layers = list(net.blobs), list(net.params)
        self._layer_names = list(net._layer_names)
        self._shapes = {name: blob.shape for name, blob in net.blobs.items()}
        self._parameters = [
            f'params["{name}"][{i}]'
            for name, blobs in net.params.items()
            for i in range(len(blobs))
        ]
        self._inputs, self._outputs = net.inputs, net.outputs
        self._held: dict[str, tuple[str, str]] = {}
        self._count = 0
        self.lines: Lines = []
        kinds = self._forward, self._see, self._write, self._write, self._hold, self._use
        more = (
            self._beside,
            self._forward_part,
            self._share,
            self._file,
            self._reshape,
            self._backward,
            self._all,
        )
        for _ in range(self._random.randint(4, 25)):
            self._random.choice((*kinds, *kinds, *more, self._drop))()
        for name in self._net(), "net":
            self._add("".join(f"see({name}.blobs[{each!r}].data); " for each in self._blobs))

    # -- lines -----------------------------------------------------------------------------------

    def _add(self, line: str) -> None:
        self.lines.append(line.rstrip("; "))

    def _seed(self) -> int:
        self._count += 1
        return self._count

    def _net(self) -> str:
        return self._random.choice(("net", "net", "net", "other"))

    def _blob(self) -> str:
        return self._random.choice(self._blobs)

    def _forward(self) -> None:
        net, kind = self._net(), self._random.randrange(4)
        wanted = f"blobs=[{self._blob()!r}]" if kind == 1 else ""
        if kind == 2:
            shapes = {name: f"net.blobs[{name!r}].shape" for name in self._inputs}
            wanted = ", ".join(f"{n}=values({self._seed()}, {s})" for n, s in shapes.items())
            wanted = wanted.replace("net.", f"{net}.")
        feed = f"fill({net}, {self._seed()}); " if self._random.random() < 0.5 else ""
        self._add(f"{feed}[see(each) for _, each in sorted({net}.forward({wanted}).items())]")

    def _forward_part(self) -> None:
        first, last = sorted(self._random.choices(self._layer_names, k=2), key=self._place)
        given = [f"start={first!r}", f"end={last!r}"]
        self._add(f"{self._net()}.forward({self._random.choice((*given, ', '.join(given)))})")

    def _place(self, name: str) -> int:
        return self._layer_names.index(name)

    def _all(self) -> None:
        if len(self._inputs) == 1:
            size = (3, *self._shapes[self._inputs[0]][1:])
            given = f"{self._inputs[0]}=values({self._seed()}, {size})"
            line = f"{self._net()}.forward_all(blobs=[{self._blob()!r}], {given})"
            self._add(f"[see(each) for _, each in sorted({line}.items())]")

    def _see(self) -> None:
        self._add(f"see({self._net()}.blobs[{self._blob()!r}].data)")

    def _weight(self) -> str:
        return self._random.choice((*self._parameters, 'params["ip"][0]', 'params["ip"][0]'))

    def _write(self) -> None:
        kind, net = self._random.randrange(4), self._net()
        if kind == 0:
            self._add(f"{net}.blobs[{self._blob()!r}].data[...] = {self._random.random()}")
        elif kind == 1:  # a large number beside small ones: nothing is computed of what it makes
            self._add(f'{net}.params["ip"][0].data[-1] = 1e6')
        else:
            self._add(self._change(f"{net}.{self._weight()}.data"))

    def _beside(self) -> None:
        """A weight that is held has a large number, and changes by little beside it."""
        name, net = f"a{self._seed()}", self._net()
        self._held[name] = (name, f'{net}.params["ip"][0].data')
        self._add(f'{name} = {net}.params["ip"][0].data; {name}[-1] = 1e6')
        self._forward()
        self._add(f"{name}[0, :2] += 0.02")
        self._forward()

    def _change(self, array: str) -> str:
        """A line that writes to an array. Its numbers keep their order of magnitude."""
        if self._random.random() < 0.5:
            return f"np.asarray({array}).reshape(-1)[:1] += {self._random.choice((0.02, 0.5))}"
        return f"np.asarray({array})[...] *= {self._random.choice((0.9, 1.1))}"

    def _hold(self) -> None:
        name, how = f"a{self._seed()}", self._random.choice(list(HOLD))
        if self._random.random() < 0.5:
            what = self._weight()
        else:
            what = f'blobs["{self._blob()}"]'
        made = how.format(f"{self._net()}.{what}.data")
        self._held[name] = (HOLD[how].format(name), made)
        self._add(f"{name} = {made}")

    def _use(self) -> None:
        if self._held:
            kept, made = self._random.choice(list(self._held.values()))
            inputs = (
                [] if self.net == NETS.index(RESIDUAL) else self._inputs
            )  # it overwrites its own
            writes = "params" in made or any(f'blobs["{name}"]' in made for name in inputs)
            writes = writes and '"bn"' not in made
            self._add(self._change(kept) if writes else f"see({kept})")

    def _drop(self) -> None:
        if self._held:
            name = self._random.choice(list(self._held))
            del self._held[name]
            self._add(f"del {name}")

    def _share(self) -> None:
        nets = self._random.sample(("net", "other"), 2)
        self._add(f"{nets[0]}.share_with({nets[1]})")

    def _file(self) -> None:
        one, two = self._net(), self._net()
        file = f'folder + "/{self._random.choice("ab")}"'
        self._add(f"{one}.save({file}); {two}.copy_from({file})")

    def _reshape(self) -> None:
        """Other shapes, and a pass: before that, blobs hold nothing that is defined. Addresses are
        no longer valid then."""
        net, input_ = self._net(), self._random.choice(self._inputs)
        shape = (self._random.randint(1, 4), *self._shapes[input_][1:])
        gone = [name for name, (_, made) in self._held.items() if made.startswith("address")]
        for name in gone:
            del self._held[name]
        dropped = "".join(f"{name} = None; " for name in gone)
        others = {"data": ("left", "square", "right"), "side": ("ip1", "tanh", "ip")}[input_]
        see = "".join(f"see({net}.blobs[{n!r}].data); " for n in others if n in self._blobs)
        see = see if len(self._inputs) > 1 else ""
        keep = ""
        if self._random.random() < 0.3:  # before the net follows
            name, made = f"a{self._seed()}", f'{net}.blobs["{input_}"].data'
            self._held[name], keep = (name, made), f"{name} = {made}; "
        line = f"{dropped}{net}.blobs[{input_!r}].reshape{shape}; {keep}{net}.reshape(); {see}"
        self._add(f"{line}fill({net}, {self._seed()}); {net}.forward()")

    def _backward(self) -> None:
        net = self._net()
        for name in self._outputs:
            shape = f"{net}.blobs[{name!r}].shape"
            self._add(f"{net}.blobs[{name!r}].diff[...] = values({self._seed()}, {shape})")
        see = "".join(f"see_gradient({net}.{name}.diff); " for name in self._parameters)
        self._add(f"{net}.clear_param_diffs(); {net}.backward(); {see}")


def seen(
    text: str, lines: Sequence[str], *, fast: bool, jitter: float = 0
) -> list[np.ndarray] | str:
    """What a script sees; what it raises."""
    with tempfile.TemporaryDirectory() as folder:
        settings._Settings.seed = None
        caffe.set_random_seed(1)
        nets = [caffe.Net(*_written(text, folder)) for _ in range(2)]
        if not fast:
            for net in nets:
                net._forward_only = None
        found: list[np.ndarray] = []
        names = {"net": nets[0], "other": nets[1], "folder": folder, "jitter": jitter}
        names["see"] = lambda array: found.append(np.array(array))
        try:
            exec("\n".join([START, *lines]), names)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return found


def check(case: Case) -> None:
    """AssertionError if what a script sees differs from what it should see, by more than ten times
    what inputs do that are off by some roundings."""
    text, lines = net_and_lines(case)
    wanted, found = (seen(text, lines, fast=fast) for fast in (False, True))
    if isinstance(wanted, str):  # what a smaller script lacks, say
        return
    assert not isinstance(found, str), f"it raises: {found}"
    if all(_near(one, other) for one, other in zip(found, wanted, strict=True)):
        return
    about = seen(text, lines, fast=False, jitter=1e-6)
    assert isinstance(about, list)
    for number, (one, other, third) in enumerate(zip(found, wanted, about, strict=True)):
        near = _near(one, other, 10 * abs(third - other))
        assert near, f"it sees: array {number} is {one}, not {other}"


def net_and_lines(case: Case) -> tuple[str, Lines]:
    """The parts of a case: the number of its net ("net": the first), and lines by place."""
    return NETS[case.get("net", 0)], [case[place] for place in sorted(case.keys() - {"net"})]


def draw(random: np.random.Generator) -> Case:
    """A session as a case."""
    session = Session(int(random.integers(1 << 32)))
    return {"net": session.net, **{f"{n:03}": line for n, line in enumerate(session.lines)}}


def _near(one: np.ndarray, other: np.ndarray, more: Any = 0) -> bool:
    return one.shape == other.shape and bool(
        np.all(abs(one - other) <= 1e-4 * (1 + abs(other)) + more)
    )


def show(case: Case) -> str:
    """A Python program of a session; it prints what the script sees."""
    text, lines = net_and_lines(case)
    begin = f'''import tempfile
import osucaffe.pycaffe as caffe
folder, see, jitter = tempfile.mkdtemp(), print, 0
with open(folder + "/net.prototxt", "w") as file:
    file.write("""{text}""")
caffe.set_random_seed(1)
net, other = (caffe.Net(folder + "/net.prototxt", caffe.TEST) for _ in range(2))
# net._forward_only = other._forward_only = None  # what it should print'''
    return "\n".join([begin, START, *lines])


def _written(text: str, folder: str | None = None) -> tuple[str, int]:
    """The file of a net, and the phase."""
    folder = folder or tempfile.mkdtemp()
    path = Path(folder, "net.prototxt")
    path.write_text(text)
    return str(path), caffe.TEST


KIND = Kind("tests.differential.sessions", draw, check, show)

if __name__ == "__main__":
    sys.exit(main(KIND))
