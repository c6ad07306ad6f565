"""Owns Blob: a named array of a net together with its gradient."""

from __future__ import annotations

from .backends.tensor import Shape, Tensor


class Blob:
    """`data` and its gradient `diff`, of one shape and one memory layout."""

    def __init__(self, name: str, shape: Shape, *, flexible: bool = False, kept: bool = False):
        self.name = name
        self.data = Tensor(shape, name=name, flexible=flexible, kept=kept)
        self.diff = Tensor(shape, name=f"{name}.diff", kept=kept, like=self.data)

    @property
    def shape(self) -> Shape:
        return self.data.shape

    def __repr__(self) -> str:
        return f"Blob({self.name} {'x'.join(map(str, self.shape)) or 'scalar'})"
