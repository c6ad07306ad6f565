"""Views of a net: its blobs, its layers, and their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np

from ..backends.tensor import Tensor
from ..errors import UserError, listed
from ..layers.base import Layer as EngineLayer
from ..net import Net as EngineNet
from .tables import html_table


class Net(Protocol):
    """What is asked of the net (net.py)."""

    engine: EngineNet
    inputs: list[str]

    def running(self) -> AbstractContextManager[Any]:
        """What lets this thread alone use it."""

    def compute(self, name: str) -> None:
        """Have a blob of the last pass."""


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """Numbers of a net, float32: `numpy()` copies them, `x[...] = values` sets them, and so does
    `x *= 2`. In NumPy's functions, and with operators, they are what `numpy()` gives.

    NumPy, PyTorch, CuPy and others take one as it is (`np.asarray(x)` is a copy; `from_dlpack(x)`
    is the net's own memory on its device, valid until the net runs again or is given other shapes).
    """

    name: str
    dtype = np.dtype(np.float32)
    _net: Net

    def _tensor(self) -> Tensor:
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        return self._tensor().shape

    def __len__(self) -> int:
        return self.shape[0]

    def numpy(self) -> np.ndarray:
        """A copy, float32."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("np.asarray copies; np.from_dlpack(x) is the memory itself")
        return self.numpy().astype(dtype or np.float32, copy=False)

    def __array_ufunc__(self, ufunc: Any, how: str, *given: Any, **options: Any) -> Any:
        out = options.pop("out", ())
        values = [each.numpy() if isinstance(each, Array) else each for each in given]
        result = getattr(ufunc, how)(*values, **options)
        for target in out:
            target[...] = result
        return out[0] if out else result

    def __getitem__(self, index: Any) -> Any:
        """A copy of a part."""
        return self.numpy()[index]

    def __setitem__(self, index: Any, values: Any) -> None:
        """Set all, or a part."""
        with self._net.running():
            whole = self.numpy()
            try:
                whole[index] = values
            except (ValueError, IndexError, TypeError) as error:
                raise UserError(f"{self}: {error}") from None
            self._write(whole)

    def _write(self, values: np.ndarray) -> None:
        raise NotImplementedError

    def _memory(self) -> Any:
        """An array of the backend's on the memory itself."""
        tensor = self._tensor()
        if tensor.layout is not None or tensor.dtype != "float32":
            raise BufferError(f"{self} does not lie row-major in float32: take .numpy()")
        return tensor.array

    def __dlpack__(self, **options: Any) -> Any:
        return self._memory().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._memory().__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._net.engine.backend.name == "cpu":
            raise AttributeError("the net is on the CPU")
        return self._memory().__cuda_array_interface__

    def __repr__(self) -> str:
        extents = "x".join(map(str, self.shape)) or "scalar"
        return f'{type(self).__name__} "{self.name}" ({extents})'

    def _repr_html_(self) -> str:
        values = self.numpy()
        figures = (
            [f"{f(values):.4g}" for f in (np.min, np.mean, np.max)] if values.size else [""] * 3
        )
        row = (self.name, "x".join(map(str, self.shape)), *figures)
        return html_table(
            "<<>>>", (type(self).__name__.lower(), "shape", "min", "mean", "max"), row
        )


class Blob(Array):
    """What layers pass to each other. Inputs can be assigned to; others are computed."""

    def __init__(self, net: Net, name: str) -> None:
        self._net, self.name = net, name

    def _tensor(self) -> Tensor:
        return self._net.engine.blobs[self.name].data

    def numpy(self) -> np.ndarray:
        """A copy of what the last pass computed. Of an input: what it read."""
        with self._net.running():
            self._net.compute(self.name)
            return self._net.engine.read(self.name)

    def _write(self, values: np.ndarray) -> None:
        if self.name not in self._net.inputs:
            raise UserError(
                f"{self} is computed: only inputs can be assigned to ({listed(self._net.inputs)})"
            )
        self._net.engine.write(self.name, values)

    def _memory(self) -> Any:
        with self._net.running():
            self._net.compute(self.name)
        return super()._memory()


class Parameter(Array):
    """Weights, or biases, of a layer."""

    def __init__(self, net: Net, layer: EngineLayer, index: int) -> None:
        self._net, self._layer, self._index = net, layer, index
        self.name = f"{layer.name}.{ROLES[index]}" if index < 2 else f"{layer.name}.{index}"

    def _tensor(self) -> Tensor:
        return self._layer.parameters[self._index].data

    def numpy(self) -> np.ndarray:
        """A copy."""
        with self._net.running():
            return self._net.engine.backend.read(self._tensor())

    def _write(self, values: np.ndarray) -> None:
        self._net.engine.backend.write(self._tensor(), values)
        self._net.engine.refresh()


ROLES = "weight", "bias"


class Parameters(Sequence[Parameter]):
    """Those of a layer, as a list: `[0]` is also `weight`, `[1]` is `bias` where there is one."""

    def __init__(self, net: Net, layer: EngineLayer) -> None:
        self._all = [Parameter(net, layer, index) for index in range(len(layer.parameters))]

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __setitem__(self, index: int, values: Any) -> None:
        self._all[index][...] = values

    def __len__(self) -> int:
        return len(self._all)

    def __getattr__(self, name: str) -> Parameter:
        if name not in ROLES[: len(self)]:
            raise AttributeError(name)
        return self._all[ROLES.index(name)]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ROLES:
            self[ROLES.index(name)] = value
        else:
            super().__setattr__(name, value)

    def __repr__(self) -> str:
        return repr(self._all)


class Layer:
    """A layer of a net: its name, type, the names of what it reads and writes, its parameters."""

    def __init__(self, net: Net, index: int) -> None:
        node = net.engine.nodes[index]
        self.name, self.type = node.layer.label, node.layer.type
        self.bottoms, self.tops = (
            list(part) for part in (node.layer.param.bottom, node.layer.param.top)
        )
        self.params = Parameters(net, node.layer)

    def __repr__(self) -> str:
        ways = " -> ".join(", ".join(names) for names in (self.bottoms, self.tops) if names)
        return f'Layer "{self.name}" ({self.type}): {ways}'

    def _repr_html_(self) -> str:
        rows = [(each.name, "x".join(map(str, each.shape))) for each in self.params]
        return html_table("<<", ("parameter", "shape"), *rows, caption=repr(self))


Value = TypeVar("Value")


class Named(Mapping[str, Value]):
    """Blobs or parameters by name. A wrong name is a UserError, and a KeyError, that lists them."""

    def __init__(self, what: str, names: Sequence[str], make: Callable[[str], Value]) -> None:
        self._what, self._made = what, dict[str, Value | None].fromkeys(names)
        self._make = make

    def __getitem__(self, name: str) -> Value:
        if name not in self._made:
            raise NoSuchName(f'the net has no {self._what} "{name}": it has {listed(self._made)}')
        value = self._made[name]
        if value is None:
            value = self._made[name] = self._make(name)
        return value

    def __setitem__(self, name: str, values: Any) -> None:
        raise UserError(f'{self._what} "{name}": set its numbers, as x[...] = values')

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: {self[name]!r}" for name in self) + "}"


class NoSuchName(UserError, KeyError):
    """A name that a net does not have."""

    __str__ = UserError.__str__
