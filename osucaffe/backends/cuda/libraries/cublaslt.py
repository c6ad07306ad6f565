"""cuBLASLt, by ctypes: matrix products with what is fused after them, and the algorithms
that it proposes for each."""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from ..runtime.background import Task, begin
from ..runtime.startup import load_cublas, missing

WORKSPACE = 32 << 20
MAX_PROPOSED = 12
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


class Products:
    """cuBLASLt on a device of CuPy's; what it proposes is asked for in the background, once."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._handle = c_void_p()
        call("Create", byref(self._handle))
        self._proposed: dict[Product, Task[list[str]]] = {}

    @functools.cached_property
    def version(self) -> int:
        """As the library numbers it."""
        get_version = _load().cublasLtGetVersion
        get_version.restype = c_size_t
        found: int = get_version()
        return found

    def proposed(self, product: Product) -> Task[list[str]]:
        """The names of the algorithms that it proposes, the most promising first."""
        if product not in self._proposed:
            self._proposed[product] = begin(functools.partial(self._propose, product))
        return self._proposed[product]

    def algorithm(self, product: Product, name: str) -> Algorithm:
        """The algorithm of a name, for a product."""
        return Algorithm(self._handle, product, name)

    def _propose(self, product: Product) -> list[str]:
        self._device.use()  # each thread has a current device of its own
        described = _Described(product)
        described.set_bias(ALIGNMENT)
        preference = c_void_p()
        call("MatmulPreferenceCreate", byref(preference))
        limits: dict[int, Any] = {_MAX_WORKSPACE: c_size_t(WORKSPACE)}
        for attribute in range(_MIN_ALIGNMENT_A, _MIN_ALIGNMENT_D + 1):
            limits[attribute] = c_uint32(ALIGNMENT)
        for attribute, value in limits.items():
            set_attribute("MatmulPreference", preference, attribute, value)
        found, count = (_Heuristic * MAX_PROPOSED)(), c_int()
        status = _load().cublasLtMatmulAlgoGetHeuristic(
            self._handle, described.description, described.b, described.a, described.c,
            described.c, preference, MAX_PROPOSED, found, byref(count),
        )  # fmt: skip
        call("MatmulPreferenceDestroy", preference)
        return [
            f"{bytes(each.algorithm).hex()} {each.workspace}"
            for each in found[: 0 if status else count.value]
            if each.state == 0
        ]


class Algorithm:
    """A way to compute a product: `workspace` bytes of scratch, and `execute`. name: one of
    those that are proposed."""

    def __init__(self, handle: c_void_p, product: Product, name: str) -> None:
        self._handle, self._product, self._described = handle, product, _Described(product)
        algorithm, workspace = name.split()
        self._algorithm = (c_uint64 * 8).from_buffer_copy(bytes.fromhex(algorithm))
        self.workspace = int(workspace)
        self._one, self._beta = c_float(1.0), c_float(float(product.accumulate))

    def execute(self, a: int, b: int, c: int, bias: int, workspace: int, stream: int) -> None:
        """Launch it. Arguments are addresses, and CUDA's stream."""
        described = self._described
        described.set_bias(bias)
        status = _load().cublasLtMatmul(
            self._handle, described.description, byref(self._one), c_void_p(b), described.b,
            c_void_p(a), described.a, byref(self._beta), c_void_p(c), described.c, c_void_p(c),
            described.c, byref(self._algorithm), c_void_p(workspace), c_size_t(self.workspace),
            c_void_p(stream),
        )  # fmt: skip
        if status:
            check(status, f"{self._product} at {a:x}, {b:x}, {c:x}, {bias:x}, {workspace:x}")


class _Described:
    """The library's descriptors of a product. It counts along columns first: its matrices are ours
    transposed, c' = b' a'."""

    def __init__(self, product: Product) -> None:
        tf32 = product.precision == "tf32"
        self.description = c_void_p()
        call(
            "MatmulDescCreate", byref(self.description),
            _COMPUTE_32F_FAST_TF32 if tf32 else _COMPUTE_32F, _TYPES["float32"],
        )  # fmt: skip
        self._set(_TRANSPOSED_A, c_int(product.transpose_b))
        self._set(_TRANSPOSED_B, c_int(product.transpose_a))
        self._set(_EPILOGUE, c_int(_EPILOGUES[product.epilogue]))
        m, n, k = product.m, product.n, product.k
        self.b = _matrix(product.a, *((k, n) if product.transpose_b else (n, k)))
        self.a = _matrix(product.a, *((m, k) if product.transpose_a else (k, m)))
        self.c = _matrix(product.c, n, m)
        self._bias = 0 if product.has_bias else None

    def __del__(self) -> None:
        for layout in self.a, self.b, self.c:
            call("MatrixLayoutDestroy", layout)
        call("MatmulDescDestroy", self.description)

    def set_bias(self, address: int) -> None:
        """Where the bias lies, if the product has one."""
        if self._bias is not None and address != self._bias:
            self._set(_BIAS_POINTER, c_void_p(address))
            self._bias = address

    def _set(self, attribute: int, value: Any) -> None:
        set_attribute("MatmulDesc", self.description, attribute, value)


def _matrix(dtype: str, rows: int, columns: int) -> c_void_p:
    layout = c_void_p()
    extents = c_uint64(rows), c_uint64(columns), c_int64(rows)
    call("MatrixLayoutCreate", byref(layout), _TYPES[dtype], *extents)
    return layout


def set_attribute(kind: str, target: c_void_p, attribute: int, value: Any) -> None:
    """Set an attribute of a descriptor of this kind."""
    size = c_size_t(ctypes.sizeof(value))
    call(f"{kind}SetAttribute", target, c_int(attribute), byref(value), size)


def call(name: str, *arguments: Any) -> None:
    """Call a function of the library, by its name without cublasLt. RuntimeError if it fails."""
    check(getattr(_load(), f"cublasLt{name}")(*arguments), name)


def check(status: int, what: str = "") -> None:
    """Raise if a call of the library failed."""
    if status:
        name = "CUBLAS_STATUS_ALLOC_FAILED" if status == 3 else f"status {status}"
        raise RuntimeError(f"cuBLASLt failed with {name} {what}")


@functools.cache
def _load() -> Any:
    """The library that comes with the cuBLAS that CuPy has loaded: its name finds it again."""
    major = load_cublas()
    try:
        return ctypes.CDLL(f"libcublasLt.so.{major}")
    except OSError as error:
        raise missing("cuBLAS", error, major=major) from None
