"""Blob: a named array of a net together with its gradient."""

from __future__ import annotations

from .backends.tensor import Shape, Tensor


class Blob:
    """`data` and its gradient `diff`, of one shape and one memory layout."""

    def __init__(
        self, name: str, shape: Shape, *, flexible: bool = False, persistent: bool = False
    ):
        self.name = name
        self.data = Tensor(shape, name=name, flexible=flexible, persistent=persistent)
        self.diff = Tensor(shape, name=f"{name}.diff", persistent=persistent, like=self.data)
        self.length: Tensor | None = None
        """Where it is known only when the net has run: how many of its rows (the last axis but
        one) hold something, a number in the backend's memory."""

    def keep_exact(self) -> None:
        """Let the data lie in row-major float32 in memory of their own, whatever the precision."""
        tensor = self.data.owner.root
        tensor.persistent, tensor.flexible = True, False

    def view(self, shape: Shape) -> Blob:
        """The same memory under another shape of as many elements."""
        return Blob.of(self.name, self.data.view(shape), self.diff.view(shape))

    @staticmethod
    def of(name: str, data: Tensor, diff: Tensor) -> Blob:
        """A blob of these."""
        blob = Blob(name, data.shape)
        blob.data, blob.diff = data, diff
        return blob

    @property
    def shape(self) -> Shape:
        return self.data.shape

    def __repr__(self) -> str:
        return f"Blob({self.name} {'x'.join(map(str, self.shape)) or 'scalar'})"
