"""oneDNN's C API (3.x) as Python sees it: constants, signatures, handles that free themselves.

Names are those of the C header without `dnnl_`; see https://oneapi-src.github.io/oneDNN/.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from typing import Any

F32 = 3
FORWARD_TRAINING, FORWARD_INFERENCE = 64, 96
CONVOLUTION_DIRECT = 1
RELU, ELU, LINEAR, HARDSWISH = 0x20, 0x22, 0x26, 0x34
MAX, AVERAGE_INCLUDE_PADDING, AVERAGE_EXCLUDE_PADDING = 0x1FF, 0x2FF, 0x3FF
LRN_ACROSS_CHANNELS, LRN_WITHIN_CHANNEL = 0xAFF, 0xBFF
SOFTMAX_ACCURATE = 0x30000
BINARY_ADD, BINARY_MULTIPLY = 0x1FFF0, 0x1FFF1

# Arguments of an execution; MULTIPLE_SRC + i for the inputs of concat and sum.
SRC, SRC_1, DST, WEIGHTS, BIAS, WORKSPACE, SCRATCHPAD = 1, 2, 17, 33, 41, 64, 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS, DIFF_BIAS, MULTIPLE_SRC = 129, 145, 161, 169, 1024
POST_OPERATION = 32768  # times the operation's number, from 1 on, for its arguments

_TAG_ANY = 1
_TAGS = 1000
"""More than there are formats with a number (dnnl_format_tag_t)."""
_AVX512 = 0x20  # in dnnl_cpu_isa_t
_CPU, _IN_ORDER, _USER_SCRATCHPAD, _UNDEFINED = 1, 1, 1, 0
_OUT_OF_MEMORY = 1
_NO_IMPLEMENTATION = (3, 4)
"""There is none, or no other."""
_QUERY_IMPLEMENTATION, _QUERY_ARGUMENT = 8, 255
_QUERY_DIMENSIONS_COUNT, _QUERY_DIMENSIONS = 256, 257
_QUERY_BLOCKS_COUNT, _QUERY_BLOCKS, _QUERY_BLOCKED_AXES = 263, 264, 265

# The arguments of dnnl_NAME_primitive_desc_create after its result: e engine, m memory descriptor,
# M array of them, d dimensions, h hint (a forward primitive descriptor), a attributes.
_PRIMITIVES = {
    "convolution_forward": "eiimmmmdddda",
    "convolution_backward_data": "eimmmddddha",
    "convolution_backward_weights": "eimmmmddddha",
    "inner_product_forward": "eimmmma",
    "inner_product_backward_data": "emmmha",
    "inner_product_backward_weights": "emmmmha",
    "eltwise_forward": "eiimmffa",
    "eltwise_backward": "eimmmffha",
    "prelu_forward": "eimmma",
    "pooling_forward": "eiimmddddda",
    "pooling_backward": "eimmdddddha",
    "lrn_forward": "eiimmqfffa",
    "lrn_backward": "eimmmqfffha",
    "softmax_forward": "eiimmia",
    "softmax_backward": "eimmmiha",
    "reorder": "memea",
    "concat": "emiiMa",
    "sum": "emiFMa",
    "binary": "eimmma",
    "matmul": "emmmma",
}
_FUNCTIONS = {
    "engine_create": "oiz",
    "stream_create": "oeu",
    "primitive_attr_create": "o",
    "primitive_attr_set_scratchpad_mode": "ai",
    "primitive_attr_set_post_ops": "ap",
    "post_ops_create": "o",
    "post_ops_append_binary": "pim",
    "post_ops_append_eltwise": "piff",
    "post_ops_append_prelu": "pi",
    "post_ops_append_sum": "pfii",
    "memory_desc_create_with_strides": "oidid",
    "memory_desc_create_with_tag": "oidii",
    "memory_desc_create_submemory": "omdd",
    "memory_desc_clone": "om",
    "memory_desc_query": "mip",
    "primitive_desc_query": "piip",
    "primitive_desc_next_impl": "p",
    "memory_create": "omep",
    "memory_set_data_handle": "pp",
    "primitive_create": "op",
}
_TYPES: dict[str, Any] = dict.fromkeys("empha", c_void_p) | {
    "o": ctypes.POINTER(c_void_p),
    "i": c_int,
    "u": c_uint,
    "z": c_size_t,
    "q": c_int64,
    "f": c_float,
    "d": ctypes.POINTER(c_int64),
    "M": ctypes.POINTER(c_void_p),
    "F": ctypes.POINTER(c_float),
}


PostOperation = tuple[Any, ...]
"""What is appended to a primitive's work: ("eltwise", algorithm, alpha, beta), ("prelu", mask of
the axes along which slopes vary) or ("binary", algorithm, format of the other operand)."""


class Unsupported(Exception):
    """oneDNN has no implementation of what was asked for."""


class Failed(Unsupported):
    """It says something else, such as that it was asked in a wrong way."""


class ExecutionArgument(ctypes.Structure):
    """dnnl_exec_arg_t."""

    _fields_ = [("argument", c_int), ("memory", c_void_p)]


class Handle:
    """An object of the library, destroyed with its last reference. `_as_parameter_`: for ctypes."""

    def __init__(self, library: Library, kind: str, value: int) -> None:
        self._as_parameter_ = c_void_p(value)
        self._library, self.value = library, value
        weakref.finalize(self, library.destroyer(kind), value).atexit = False


class Descriptor(Handle):
    """A memory descriptor: dimensions, data type, and how the elements lie."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descriptor) and bool(self._library.equal(self.value, other.value))

    __hash__ = None  # type: ignore[assignment]

    @property
    def bytes(self) -> int:
        """The memory that it takes, padding included."""
        return int(self._library.get_size(self.value))

    @property
    def dimensions(self) -> tuple[int, ...]:
        return self._numbers(_QUERY_DIMENSIONS_COUNT, _QUERY_DIMENSIONS)

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The axis and the size of each of its blocks, the innermost last."""
        axes = self._numbers(_QUERY_BLOCKS_COUNT, _QUERY_BLOCKED_AXES)
        return [*zip(axes, self._numbers(_QUERY_BLOCKS_COUNT, _QUERY_BLOCKS), strict=True)]

    def _numbers(self, how_many: int, which: int) -> tuple[int, ...]:
        count, pointer = c_int(), ctypes.POINTER(c_int64)()
        self._library.call("memory_desc_query", self, how_many, byref(count))
        self._library.call("memory_desc_query", self, which, byref(pointer))
        return tuple(pointer[: count.value])

    def window(self, dimensions: Sequence[int], start: Sequence[int]) -> Descriptor:
        """A part of memory that lies so. Raises Unsupported where it would cut a block."""
        extents = map(self._library.dimensions, (dimensions, start))
        value = self._library.create("memory_desc_create_submemory", self, *extents)
        return Descriptor(self._library, "memory_desc", value)

    def like(self, dimensions: Sequence[int]) -> Descriptor | None:
        """The same format for other dimensions; None: it is none of those that have a number."""
        return self._library.tagged_like(self, dimensions)


class PrimitiveDescriptor(Handle):
    """A chosen implementation of a primitive for given memory descriptors."""

    @property
    def implementation(self) -> str:
        """Its name in the library, such as `jit:avx512_core` or `ref:any`."""
        text = c_char_p()
        self._library.call("primitive_desc_query", self, _QUERY_IMPLEMENTATION, 0, byref(text))
        return (text.value or b"").decode()

    @property
    def is_fast(self) -> bool:
        """Whether it is generated code, not oneDNN's portable fallback or a GEMM with copies."""
        return self.implementation.startswith(("jit", "br", "lrn_jit"))

    @property
    def is_reference(self) -> bool:
        """Whether it is oneDNN's plain loops, which are there for lack of anything else."""
        return self.implementation.startswith("ref")

    def next(self) -> None:
        """Become the next best implementation. Raises Unsupported where there is none."""
        self._library.call("primitive_desc_next_impl", self)

    def has(self, argument: int) -> bool:
        """Whether it uses an argument that is optional, such as a workspace."""
        return bool(self._library.get_size(self._form(argument)))

    def wants(self, argument: int) -> Descriptor:
        """The format of an argument."""
        value = self._library.create("memory_desc_clone", self._form(argument))
        return Descriptor(self._library, "memory_desc", value)

    def _form(self, argument: int) -> int | None:
        found: int | None = self._library.query_md(self.value, _QUERY_ARGUMENT, argument)
        return found


class Library:
    """The loaded shared library with one CPU engine and one stream.

    Raises OSError when `path` cannot be loaded or is not oneDNN 3.x, AttributeError when it lacks a
    function (as builds without OpenMP do).
    """

    def __init__(self, path: str) -> None:
        self._dll = ctypes.CDLL(path)
        try:
            version = self._dll.dnnl_version
        except AttributeError as error:
            raise OSError(f"{path} is not oneDNN") from error
        version.restype = ctypes.POINTER(c_int)
        self.version = tuple(version()[:3])
        if self.version[0] != 3:
            raise OSError(f"{path} is oneDNN {self.version[0]}.x, not 3.x")
        self._functions = {
            name: self._declare(f"dnnl_{name}", signature) for name, signature in _FUNCTIONS.items()
        }
        for name, signature in _PRIMITIVES.items():
            self._functions[name] = self._declare(
                f"dnnl_{name}_primitive_desc_create", "o" + signature
            )
        self.equal = self._declare("dnnl_memory_desc_equal", "mm")
        self.get_size = self._declare("dnnl_memory_desc_get_size", "m")
        self.get_size.restype = c_size_t
        self.query_md = self._declare("dnnl_primitive_desc_query_md", "pii")
        self.query_md.restype = c_void_p
        # Given handles as ctypes has them: to check their types takes a sixth of a small call.
        self.execute = self._dll.dnnl_primitive_execute
        self.set_data_handle = self._functions["memory_set_data_handle"]
        # OpenMP's, found among the library's own dependencies.
        self.set_threads = self._dll.omp_set_num_threads
        self.effective_cpu_isa = self._dll.dnnl_get_effective_cpu_isa
        self.has_avx512 = bool(self.effective_cpu_isa() & _AVX512)
        self._tags = list(range(_TAG_ANY + 1, _TAGS))
        self.engine = self.create("engine_create", _CPU, 0)
        self.stream = self.create("stream_create", self.engine, _IN_ORDER)

    def _declare(self, name: str, signature: str) -> Any:
        function = getattr(self._dll, name)
        function.argtypes = [_TYPES[letter] for letter in signature]
        return function

    def destroyer(self, kind: str) -> Any:
        return self._declare(f"dnnl_{kind}_destroy", "p")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library; raise Unsupported, or Failed, when it reports failure."""
        status = self._functions[name](*arguments)
        if status == _OUT_OF_MEMORY:
            raise MemoryError(f"oneDNN's {name}")
        if status:
            kind = Unsupported if status in _NO_IMPLEMENTATION else Failed
            raise kind(f"dnnl_{name}: status {status}")

    def create(self, name: str, *arguments: Any) -> int:
        """Call a function whose first argument receives the handle that it makes."""
        handle = c_void_p()
        self.call(name, byref(handle), *arguments)
        return handle.value or 0

    def plain(self, dimensions: Sequence[int], strides: Sequence[int] | None = None) -> Descriptor:
        """Memory with the given strides, in elements (None: row-major)."""
        if strides is None:
            strides = [1]
            for extent in reversed(dimensions[1:]):
                strides.insert(0, strides[0] * extent)
        return self._descriptor("with_strides", dimensions, self.dimensions(strides))

    def any(self, dimensions: Sequence[int]) -> Descriptor:
        """Memory whose format the primitive shall choose."""
        return self._descriptor("with_tag", dimensions, _TAG_ANY)

    def tagged_like(self, form: Descriptor, dimensions: Sequence[int]) -> Descriptor | None:
        """See `Descriptor.like`. Formats are tried by their numbers: those found before, first."""
        own = form.dimensions
        for index, tag in enumerate(self._tags):
            try:
                if self._descriptor("with_tag", own, tag) != form:
                    continue
                found = self._descriptor("with_tag", dimensions, tag)
            except Unsupported:
                continue
            self._tags.insert(0, self._tags.pop(index))
            return found
        return None

    def _descriptor(self, how: str, dimensions: Sequence[int], last: Any) -> Descriptor:
        extents = self.dimensions(dimensions)
        value = self.create(f"memory_desc_create_{how}", len(dimensions), extents, F32, last)
        return Descriptor(self, "memory_desc", value)

    @staticmethod
    def dimensions(values: Sequence[int]) -> Any:
        return (c_int64 * max(len(values), 1))(*values)

    def _attributes(self, sum_scale: float | None, post_ops: Sequence[PostOperation]) -> Handle:
        attributes = Handle(self, "primitive_attr", self.create("primitive_attr_create"))
        self.call("primitive_attr_set_scratchpad_mode", attributes, _USER_SCRATCHPAD)
        operations = Handle(self, "post_ops", self.create("post_ops_create"))
        if sum_scale is not None:
            self.call("post_ops_append_sum", operations, sum_scale, 0, _UNDEFINED)
        for name, *settings in post_ops:
            self.call(f"post_ops_append_{name}", operations, *settings)
        self.call("primitive_attr_set_post_ops", attributes, operations)
        return attributes

    def describe(
        self,
        primitive: str,
        *arguments: Any,
        sum_scale: float | None = None,
        post_ops: Sequence[PostOperation] = (),
    ) -> PrimitiveDescriptor:
        """Choose an implementation. Engines and attributes are filled in; sequences of whole
        numbers become dimensions, of Descriptors arrays of them. Scratchpads come from the caller.

        sum_scale: add the output times this. post_ops: apply these to it.
        Raises Unsupported.
        """
        remaining = iter(arguments)
        given: list[Any] = []
        attributes = self._attributes(sum_scale, post_ops)
        for letter in _PRIMITIVES[primitive]:
            if letter in "ea":
                given.append(self.engine if letter == "e" else attributes)
                continue
            value = next(remaining)
            if letter == "d":
                value = self.dimensions(value)
            elif letter == "M":
                value = (c_void_p * len(value))(*(descriptor.value for descriptor in value))
            elif letter == "F":
                value = (c_float * len(value))(*value)
            given.append(value)
        return PrimitiveDescriptor(self, "primitive_desc", self.create(primitive, *given))

    def primitive(self, descriptor: PrimitiveDescriptor) -> Handle:
        """Generate the code of a chosen implementation."""
        return Handle(self, "primitive", self.create("primitive_create", descriptor))

    def memory(self, descriptor: Descriptor) -> Handle:
        """A memory object without memory yet (see `set_data_handle`)."""
        value = self.create("memory_create", descriptor, self.engine, None)
        return Handle(self, "memory", value)
