"""Owns cuBLASLt, by ctypes: matrix products with what is fused behind them, and the algorithms
that it proposes for each."""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from ..runtime.background import Task, begin
from ..runtime.startup import load_cublas, missing

WORKSPACE = 32 << 20
MOST_PROPOSED = 12
ALIGNMENT = 16
"""Bytes: all operands begin at multiples of this."""

_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
_COMPUTE_32F, _COMPUTE_32F_FAST_TF32 = 68, 77
_TRANSPOSED_A, _TRANSPOSED_B, _EPILOGUE, _BIAS_POINTER = 3, 4, 7, 8
_EPILOGUES = {"": 1, "relu": 2, "bias": 4, "bias relu": 6}
_MAX_WORKSPACE = 1
_MIN_ALIGNMENT_A, _MIN_ALIGNMENT_D = 5, 8


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = [
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


@dataclass(frozen=True)
class Product:
    """c (m, n) = a (m, k) b (k, n), all row-major; epilogue: one of "", "relu", "bias" (of n
    elements, in c's type), "bias relu".

    transpose_a: a lies as (k, m); transpose_b: b lies as (n, k). accumulate: c is added to.
    """

    precision: str
    m: int
    n: int
    k: int
    transpose_a: bool
    transpose_b: bool
    a: str
    c: str
    epilogue: str = ""
    accumulate: bool = False

    @property
    def has_bias(self) -> bool:
        """Whether a bias is among the operands."""
        return self.epilogue.startswith("bias")


class Library:
    """cuBLASLt on the current device. Threads may use it at the same time."""

    def __init__(self) -> None:
        self.calls = _load()
        self.handle = c_void_p()
        check(self.calls.cublasLtCreate(byref(self.handle)))

    @functools.cached_property
    def version(self) -> int:
        """As the library numbers it."""
        self.calls.cublasLtGetVersion.restype = c_size_t
        found: int = self.calls.cublasLtGetVersion()
        return found


class Algorithm:
    """A way to compute a product: `workspace` bytes of scratch, and `execute`. name: one of
    `proposals`."""

    def __init__(self, library: Library, product: Product, name: str) -> None:
        self._library = library
        self._operands = _Operands(library, product)
        algorithm, workspace = name.split()
        self._algorithm = (c_uint64 * 8).from_buffer_copy(bytes.fromhex(algorithm))
        self.workspace = int(workspace)

    def execute(self, a: int, b: int, c: int, bias: int, workspace: int, stream: int) -> None:
        """Launch it. Arguments are addresses, and CUDA's stream."""
        given = self._operands
        given.set_bias(bias)
        status = self._library.calls.cublasLtMatmul(
            self._library.handle, given.description, byref(given.one), c_void_p(b), given.b,
            c_void_p(a), given.a, byref(given.beta), c_void_p(c), given.c, c_void_p(c), given.c,
            byref(self._algorithm), c_void_p(workspace), c_size_t(self.workspace), c_void_p(stream),
        )  # fmt: skip
        check(status, f"{given.product} at {a:x}, {b:x}, {c:x}, {bias:x}, {workspace:x}")


def proposals(library: Library, product: Product) -> list[str]:
    """The algorithms that the library proposes, the most promising first, as text."""
    given = _Operands(library, product)
    given.set_bias(ALIGNMENT)
    preference = c_void_p()
    check(library.calls.cublasLtMatmulPreferenceCreate(byref(preference)))
    set_attribute = library.calls.cublasLtMatmulPreferenceSetAttribute
    check(set_attribute(preference, _MAX_WORKSPACE, byref(c_size_t(WORKSPACE)), c_size_t(8)))
    alignment = ctypes.c_uint32(ALIGNMENT)
    for attribute in range(_MIN_ALIGNMENT_A, _MIN_ALIGNMENT_D + 1):
        check(set_attribute(preference, attribute, byref(alignment), c_size_t(4)))
    found = (_Heuristic * MOST_PROPOSED)()
    count = c_int()
    status = library.calls.cublasLtMatmulAlgoGetHeuristic(
        library.handle, given.description, given.b, given.a, given.c, given.c, preference,
        MOST_PROPOSED, found, byref(count),
    )  # fmt: skip
    library.calls.cublasLtMatmulPreferenceDestroy(preference)
    if status:
        return []
    return [
        f"{bytes(each.algorithm).hex()} {each.workspace}"
        for each in found[: count.value]
        if each.state == 0
    ]


class Products:
    """What is proposed for products on a device of CuPy's, asked for in the background, once."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.library = Library()
        self._proposed: dict[Product, Task[list[str]]] = {}

    def proposed(self, product: Product) -> Task[list[str]]:
        """The names of the algorithms that it proposes."""
        if product not in self._proposed:
            self._proposed[product] = begin(functools.partial(self._on_a_thread, product))
        return self._proposed[product]

    def algorithm(self, product: Product, name: str) -> Algorithm:
        """The algorithm of a name, for a product."""
        return Algorithm(self.library, product, name)

    def _on_a_thread(self, product: Product) -> list[str]:
        self._device.use()
        return proposals(self.library, product)


class _Operands:
    """What the library is told of a product. It counts along columns first: its matrices are ours
    transposed, c' = b' a'."""

    def __init__(self, library: Library, product: Product) -> None:
        self.product = product
        self._calls = library.calls
        kind, wide = _TYPES[product.a], _TYPES[product.c]
        compute = _COMPUTE_32F_FAST_TF32 if product.precision == "tf32" else _COMPUTE_32F
        self.description = c_void_p()
        scale = _TYPES["float32"]
        check(self._calls.cublasLtMatmulDescCreate(byref(self.description), compute, scale))
        self._set(_TRANSPOSED_A, c_int(product.transpose_b))
        self._set(_TRANSPOSED_B, c_int(product.transpose_a))
        self._set(_EPILOGUE, c_int(_EPILOGUES[product.epilogue]))
        m, n, k = product.m, product.n, product.k
        self.b = self._matrix(kind, *((k, n) if product.transpose_b else (n, k)))
        self.a = self._matrix(kind, *((m, k) if product.transpose_a else (k, m)))
        self.c = self._matrix(wide, n, m)
        self.one = c_float(1.0)
        self.beta = c_float(float(product.accumulate))
        self._bias = 0

    def __del__(self) -> None:
        for layout in self.a, self.b, self.c:
            self._calls.cublasLtMatrixLayoutDestroy(layout)
        self._calls.cublasLtMatmulDescDestroy(self.description)

    def set_bias(self, address: int) -> None:
        """Where the bias lies, if the product has one."""
        if self.product.has_bias and address != self._bias:
            self._set(_BIAS_POINTER, c_void_p(address))
            self._bias = address

    def _set(self, attribute: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        check(
            self._calls.cublasLtMatmulDescSetAttribute(
                self.description, c_int(attribute), byref(value), size
            )
        )

    def _matrix(self, kind: int, rows: int, columns: int) -> c_void_p:
        layout = c_void_p()
        check(
            self._calls.cublasLtMatrixLayoutCreate(
                byref(layout), kind, c_uint64(rows), c_uint64(columns), c_int64(rows)
            )
        )
        return layout


def check(status: int, what: str = "") -> None:
    """Raise if a call of the library failed."""
    if status:
        name = "CUBLAS_STATUS_ALLOC_FAILED" if status == 3 else f"status {status}"
        raise RuntimeError(f"cuBLASLt failed with {name} {what}")


@functools.cache
def _load() -> Any:
    """The library beside the cuBLAS that CuPy has loaded: by its name it is found again."""
    major = load_cublas()
    try:
        return ctypes.CDLL(f"libcublasLt.so.{major}")
    except OSError as error:
        raise missing("cuBLAS", error, major=major) from None
