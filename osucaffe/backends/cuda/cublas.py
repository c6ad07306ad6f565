"""Owns cuBLASLt: matrix products with what is fused behind them, each by its fastest algorithm."""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .layout import ITEM_BYTES
from .plans import Choices, device_name, fastest, trial_memory

if TYPE_CHECKING:
    from .backend import Cuda

WORKSPACE = 32 << 20
MOST_TIMED = 12

_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
_COMPUTE_32F, _COMPUTE_32F_FAST_TF32 = 68, 77
_TRANSPOSED_A, _TRANSPOSED_B, _EPILOGUE, _BIAS_POINTER = 3, 4, 7, 8
_EPILOGUES = {"": 1, "relu": 2, "bias": 4, "bias relu": 6, "bias gradient": 512}
_MAX_WORKSPACE = 1
_MIN_ALIGNMENT_A, _MIN_ALIGNMENT_D = 5, 8
ALIGNMENT = 16
"""Bytes: all operands begin at multiples of this."""


class _Heuristic(ctypes.Structure):
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

    transpose_a: a lies as (k, m); transpose_b: b lies as (n, k).
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


class Algorithm:
    """A way to compute a product: `workspace` bytes of scratch, and `execute`.

    milliseconds: what it took when it was chosen.
    """

    def __init__(self, library: Any, handle: c_void_p, product: Product, backend: Cuda) -> None:
        self._library, self._handle, self._backend = library, handle, backend
        self._product = product
        self._has_bias = product.epilogue.startswith("bias")
        self.milliseconds = 0.0
        kind, wide = _TYPES[product.a], _TYPES[product.c]
        compute = _COMPUTE_32F_FAST_TF32 if product.precision == "tf32" else _COMPUTE_32F
        # cuBLAS counts along columns first: its matrices are ours transposed, c' = b' a'.
        self._description = c_void_p()
        scale = _TYPES["float32"]
        check(library.cublasLtMatmulDescCreate(byref(self._description), compute, scale))
        self._set(_TRANSPOSED_A, c_int(product.transpose_b))
        self._set(_TRANSPOSED_B, c_int(product.transpose_a))
        self._set(_EPILOGUE, c_int(_EPILOGUES[product.epilogue]))
        m, n, k = product.m, product.n, product.k
        self._b = self._matrix(kind, *((k, n) if product.transpose_b else (n, k)))
        self._a = self._matrix(kind, *((m, k) if product.transpose_a else (k, m)))
        self._c = self._matrix(wide, n, m)
        self._one = c_float(1.0)
        self._beta = c_float(float(product.accumulate))
        self._algorithm: Any = None
        self.workspace = 0

    def _set(self, attribute: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        check(
            self._library.cublasLtMatmulDescSetAttribute(
                self._description, c_int(attribute), byref(value), size
            )
        )

    def _matrix(self, kind: int, rows: int, columns: int) -> c_void_p:
        layout = c_void_p()
        check(
            self._library.cublasLtMatrixLayoutCreate(
                byref(layout), kind, c_uint64(rows), c_uint64(columns), c_int64(rows)
            )
        )
        return layout

    def proposals(self) -> list[str]:
        """The algorithms that the library proposes, most promising first, as text."""
        preference = c_void_p()
        check(self._library.cublasLtMatmulPreferenceCreate(byref(preference)))
        set_attribute = self._library.cublasLtMatmulPreferenceSetAttribute
        check(set_attribute(preference, _MAX_WORKSPACE, byref(c_size_t(WORKSPACE)), c_size_t(8)))
        alignment = ctypes.c_uint32(ALIGNMENT)
        for attribute in range(_MIN_ALIGNMENT_A, _MIN_ALIGNMENT_D + 1):
            check(set_attribute(preference, attribute, byref(alignment), c_size_t(4)))
        if self._has_bias:
            self._set(_BIAS_POINTER, c_void_p(ALIGNMENT))
        found = (_Heuristic * MOST_TIMED)()
        count = c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, self._description, self._b, self._a, self._c, self._c, preference,
            MOST_TIMED, found, byref(count),
        )  # fmt: skip
        self._library.cublasLtMatmulPreferenceDestroy(preference)
        if status:
            return []
        return [
            f"{bytes(each.algorithm).hex()} {each.workspace}"
            for each in found[: count.value]
            if each.state == 0
        ]

    def choose(self, text: str) -> None:
        """Use one of `proposals`."""
        algorithm, workspace = text.split()
        self._algorithm = (c_uint64 * 8).from_buffer_copy(bytes.fromhex(algorithm))
        self.workspace = int(workspace)

    def execute(self, a: int, b: int, c: int, bias: int, workspace: int) -> None:
        """Launch it. Arguments are addresses."""
        if bias:
            self._set(_BIAS_POINTER, c_void_p(bias))
        status = self._library.cublasLtMatmul(
            self._handle, self._description, byref(self._one), c_void_p(b), self._b,
            c_void_p(a), self._a, byref(self._beta), c_void_p(c), self._c, c_void_p(c), self._c,
            byref(self._algorithm), c_void_p(workspace), c_size_t(self.workspace),
            c_void_p(self._backend.current.ptr),
        )  # fmt: skip
        check(status, f"{self._product} at {a:x}, {b:x}, {c:x}, {bias:x}, {workspace:x}")


class Cublas:
    """cuBLASLt on one device and stream."""

    def __init__(self, backend: Cuda) -> None:
        self.backend = backend
        self.library = _load()
        self.handle = c_void_p()
        check(self.library.cublasLtCreate(byref(self.handle)))
        self.library.cublasLtGetVersion.restype = c_size_t
        version = self.library.cublasLtGetVersion()
        self._choices = Choices(f"cublas {version}, {device_name(backend)}")
        self._algorithms: dict[Product, Algorithm | None] = {}

    def algorithm(self, product: Product) -> Algorithm | None:
        """The fastest algorithm for a product, or None where the library has none."""
        if product not in self._algorithms:
            self._algorithms[product] = self._find(product)
        return self._algorithms[product]

    def _find(self, product: Product) -> Algorithm | None:
        algorithm = Algorithm(self.library, self.handle, product, self.backend)
        chosen = self._choices.get(repr(product))
        if chosen is not None:
            algorithm.choose(chosen[0])
            algorithm.milliseconds = chosen[1]
            return algorithm
        proposals = algorithm.proposals()
        if not proposals:
            return None
        item, wide = ITEM_BYTES[product.a], ITEM_BYTES[product.c]
        m, n, k = product.m, product.n, product.k
        sizes = [m * k * item, k * n * item, m * n * wide, max(m, n) * 4, WORKSPACE]
        memory = [trial_memory(self.backend, size) for size in sizes]
        a, b, c, bias, workspace = (int(each.data.ptr) for each in memory)

        def run(text: str) -> None:
            algorithm.choose(text)
            algorithm.execute(a, b, c, bias if algorithm._has_bias else 0, workspace)

        number, taken = fastest(self.backend, [functools.partial(run, text) for text in proposals])
        if number is None:
            return None
        algorithm.choose(proposals[number])
        algorithm.milliseconds = taken
        self._choices.put(repr(product), proposals[number], taken)
        return algorithm


def check(status: int, what: str = "") -> None:
    """Raise if a call of the library failed."""
    if status:
        name = "CUBLAS_STATUS_ALLOC_FAILED" if status == 3 else f"status {status}"
        raise RuntimeError(f"cuBLASLt failed with {name} {what}")


@functools.cache
def _load() -> Any:
    # CuPy's own cuBLAS has loaded the library: by its name it is found again.
    from cupy_backends.cuda.libs import cublas  # noqa: F401

    for version in "13", "12":
        try:
            return ctypes.CDLL(f"libcublasLt.so.{version}")
        except OSError:
            continue
    raise RuntimeError("libcublasLt is not there, although cuBLAS is")
