"""Owns nvImageCodec's C interface (nvimgcodec.h): what decodes JPEGs, a batch in one call.

Its Python package would cost several objects and copies for each image, and the interpreter's lock
with them, for which the thread that trains waits too.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from ctypes import byref, c_char, c_char_p, c_float, c_int, c_size_t, c_uint8, c_uint32, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

from ....errors import UserError
from ...tensor import Shape

PACKAGE = "nvidia.nvimgcodec"
VERSION = 0, 9
"""Whose structures these are."""
CPU_ONLY, GPU_ONLY, HYBRID, HW_GPU_ONLY = 1, 2, 3, 4
"""Kinds of back ends: nvimgcodecBackendKind_t."""
NO_DEVICE = -99999
"""The device of a decoder that works on the CPU alone: NVIMGCODEC_DEVICE_CPU_ONLY."""
_SUCCESS = 1  # of a JPEG: nvimgcodecProcessingStatus_t
_UINT8 = 0x0802  # nvimgcodecSampleDataType_t
_FORMATS = {1: (2, 7, 4), 3: (1, 0, 10)}
"""By the number of channels: the colour space, the chroma's sampling and the order of samples, gray
or BGR (nvimgcodecColorSpec_t, nvimgcodecChromaSubsampling_t, nvimgcodecSampleFormat_t)."""


class Struct(ctypes.Structure):
    """What all structures begin with. kind: nvimgcodecStructureType_t."""

    kind = 0
    _fields_ = [("struct_type", c_int), ("struct_size", c_size_t), ("struct_next", c_void_p)]

    def __init__(self, **fields: Any) -> None:
        super().__init__(self.kind, ctypes.sizeof(self), **fields)


class Properties(Struct):
    """nvimgcodecProperties_t"""

    kind = 1
    _fields_ = [("version", c_uint32), ("cudart_version", c_uint32)]


class InstanceCreateInfo(Struct):
    """nvimgcodecInstanceCreateInfo_t"""

    kind = 2
    _fields_ = [
        ("load_builtin_modules", c_int), ("load_extension_modules", c_int),
        ("extension_modules_path", c_char_p), ("create_debug_messenger", c_int),
        ("debug_messenger_desc", c_void_p), ("message_severity", c_uint32),
        ("message_category", c_uint32),
    ]  # fmt: skip


class DecodeParams(Struct):
    """nvimgcodecDecodeParams_t"""

    kind = 5
    _fields_ = [("apply_exif_orientation", c_int)]


class Orientation(Struct):
    """nvimgcodecOrientation_t"""

    kind = 7
    _fields_ = [("rotated", c_int), ("flip_x", c_int), ("flip_y", c_int)]


class ImagePlaneInfo(Struct):
    """nvimgcodecImagePlaneInfo_t"""

    kind = 12
    _fields_ = [
        ("width", c_uint32), ("height", c_uint32), ("row_stride", c_size_t),
        ("num_channels", c_uint32), ("sample_type", c_int), ("precision", c_uint8),
    ]  # fmt: skip


class ImageInfo(Struct):
    """nvimgcodecImageInfo_t"""

    kind = 11
    _fields_ = [
        ("codec_name", c_char * 256), ("color_spec", c_int), ("chroma_subsampling", c_int),
        ("sample_format", c_int), ("orientation", Orientation), ("num_planes", c_uint32),
        ("plane_info", ImagePlaneInfo * 32), ("buffer", c_void_p), ("buffer_kind", c_int),
        ("cuda_stream", c_void_p),
    ]  # fmt: skip

    def __init__(self, **fields: Any) -> None:
        plane = ImagePlaneInfo()
        planes = (ImagePlaneInfo * 32)(*[plane] * 32)
        super().__init__(orientation=Orientation(), plane_info=planes, **fields)


class BackendParams(Struct):
    """nvimgcodecBackendParams_t"""

    kind = 29
    _fields_ = [("load_hint", c_float), ("load_hint_policy", c_int)]


class Backend(Struct):
    """nvimgcodecBackend_t"""

    kind = 17
    _fields_ = [("backend", c_int), ("params", BackendParams)]


class ExecutionParams(Struct):
    """nvimgcodecExecutionParams_t"""

    kind = 30
    _fields_ = [
        ("device_allocator", c_void_p), ("pinned_allocator", c_void_p),
        ("max_num_cpu_threads", c_int), ("executor", c_void_p), ("device_id", c_int),
        ("pre_init", c_int), ("skip_pre_sync", c_int), ("num_backends", c_int),
        ("backends", ctypes.POINTER(Backend)),
    ]  # fmt: skip


class ExtensionDesc(Struct):
    """nvimgcodecExtensionDesc_t"""

    kind = 27
    _fields_ = [
        ("instance", c_void_p), ("id", c_char_p), ("version", c_uint32),
        ("ext_api_version", c_uint32), ("create", c_void_p), ("destroy", c_void_p),
    ]  # fmt: skip


class CodecError(RuntimeError):
    """A call that failed."""


class Source(NamedTuple):
    """A JPEG in the host's memory: where it begins, and its bytes."""

    address: int
    size: int


class Target(NamedTuple):
    """Memory for an image: where it begins, (height, width), and from one row to the next."""

    address: int
    extents: Shape
    row: int


class Codec:
    """The library, and of its extensions those that are named. UserError where it is missing."""

    def __init__(self, *extensions: str) -> None:
        folder = _folder()
        try:
            path = str(folder / "libnvimgcodec.so.0")
            # What takes a microsecond keeps the interpreter's lock: to get it back takes longer.
            self.quick, self.library = ctypes.PyDLL(path), ctypes.CDLL(path)
            files = [_only(folder / "extensions", name) for name in extensions]
            self._extensions = [ctypes.CDLL(str(file)) for file in files]
        except OSError as error:
            raise missing(str(error)) from None
        properties = Properties()
        _succeed("GetProperties", self.quick.nvimgcodecGetProperties(byref(properties)))
        major, minor = divmod(properties.version // 100, 10)
        if (major, minor) != VERSION:
            raise missing(f"version 0.9, not {major}.{minor}")
        self.instance = c_void_p()
        info = InstanceCreateInfo(load_builtin_modules=1)
        created = self.library.nvimgcodecInstanceCreate(byref(self.instance), byref(info))
        _succeed("InstanceCreate", created)
        for library in self._extensions:
            description, extension = ExtensionDesc(), c_void_p()
            told = library.nvimgcodecExtensionModuleEntry(byref(description))
            _succeed("ExtensionModuleEntry", told)
            given = self.instance, byref(extension), byref(description)
            _succeed("ExtensionCreate", self.library.nvimgcodecExtensionCreate(*given))


class Decoding:
    """Decodes batches, one after the other, on a device (or NO_DEVICE), by these kinds of back
    ends: each has all that the one before left. Its handles are used again, and never freed."""

    def __init__(
        self, codec: Codec, device: int, kinds: Sequence[int], *, threads: int, options: str
    ) -> None:
        """threads: of the host."""
        self._codec = codec
        load = BackendParams(load_hint=1.0, load_hint_policy=1)
        backends = (Backend * len(kinds))(*[Backend(backend=each, params=load) for each in kinds])
        params = ExecutionParams(
            max_num_cpu_threads=threads, device_id=device, skip_pre_sync=1,
            num_backends=len(kinds), backends=backends,
        )  # fmt: skip
        self._decoder = c_void_p()
        given = codec.instance, byref(self._decoder), byref(params), options.encode()
        _succeed("DecoderCreate", codec.library.nvimgcodecDecoderCreate(*given))
        # Pixels as they are stored, whatever EXIF says of turning them: as Caffe reads them.
        self._params = DecodeParams(apply_exif_orientation=0)
        self._kind = 2 if device == NO_DEVICE else 1  # nvimgcodecImageBufferKind_t
        self._streams, self._images = (c_void_p * 0)(), (c_void_p * 0)()
        self._found = ImageInfo()

    def decode(
        self, sources: Sequence[Source], targets: Sequence[Target], channels: int, stream: int
    ) -> list[bool]:
        """Decode JPEGs, gray or BGR, to memory of the device: there when the CUDA stream is. For
        each, whether it is done: one that has other extents than its target is not."""
        done = [False] * len(sources)
        taken = self._take(sources, targets, channels, stream)
        if taken:
            for number, status in zip(taken, self._run(len(taken)), strict=True):
                done[number] = status == _SUCCESS
        return done

    def _take(
        self, sources: Sequence[Source], targets: Sequence[Target], channels: int, stream: int
    ) -> list[int]:
        """Fill the handles; the numbers of the JPEGs that have some, in order."""
        if len(sources) > len(self._streams):
            more = c_void_p * len(sources)
            self._streams, self._images = more(*self._streams), more(*self._images)
        quick, instance, item = self._codec.quick, self._codec.instance, ctypes.sizeof(c_void_p)
        read, make = quick.nvimgcodecCodeStreamCreateFromHostMem, quick.nvimgcodecImageCreate
        tell, found = quick.nvimgcodecCodeStreamGetImageInfo, self._found
        colours, sampling, order = _FORMATS[channels]
        info = ImageInfo(
            color_spec=colours, chroma_subsampling=sampling, sample_format=order, num_planes=1,
            buffer_kind=self._kind, cuda_stream=stream,
        )  # fmt: skip
        plane, stored = info.plane_info[0], found.plane_info[0]
        plane.num_channels, plane.sample_type = channels, _UINT8
        told, given = byref(found), byref(info)
        taken: list[int] = []
        for number, ((address, size), target) in enumerate(zip(sources, targets, strict=True)):
            at = len(taken)
            handle = byref(self._streams, at * item)
            if read(instance, handle, c_void_p(address), c_size_t(size), None):
                continue
            if tell(c_void_p(self._streams[at]), told):
                continue
            if (stored.height, stored.width) != target.extents:
                continue
            plane.height, plane.width = target.extents
            plane.row_stride, info.buffer = target.row, target.address
            _succeed("ImageCreate", make(instance, byref(self._images, at * item), given))
            taken.append(number)
        return taken

    def _run(self, count: int) -> list[int]:
        """Decode the first so many; the status of each."""
        library, future = self._codec.library, c_void_p()
        given = c_int(count), byref(self._params), byref(future)
        begun = library.nvimgcodecDecoderDecode(self._decoder, self._streams, self._images, *given)
        _succeed("DecoderDecode", begun)
        statuses, size = (c_uint32 * count)(), c_size_t(count)
        try:
            _succeed("FutureWaitForAll", library.nvimgcodecFutureWaitForAll(future))
            asked = library.nvimgcodecFutureGetProcessingStatus(future, statuses, byref(size))
            _succeed("FutureGetProcessingStatus", asked)
        finally:
            library.nvimgcodecFutureDestroy(future)
        return list(statuses)


def missing(why: str) -> UserError:
    """The error that tells what to install."""
    return UserError(
        f"--decode gpu or both needs nvImageCodec ({why}): "
        'pip install "osucaffe[decode13]" (or [decode12] for an older driver)'
    )


def _folder() -> Path:
    """Where the package lies; it is not imported."""
    try:
        found = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError) as error:
        raise missing(str(error)) from None
    if found is None or not found.submodule_search_locations:
        raise missing(f"there is no package {PACKAGE}")
    return Path(found.submodule_search_locations[0])


def _only(folder: Path, name: str) -> Path:
    """The file of an extension, whatever its version. OSError if there is none."""
    found = sorted(folder.glob(f"lib{name}_ext.so*"))
    if not found:
        raise OSError(f"{folder} has no {name} extension")
    return found[0]


def _succeed(call: str, status: int) -> None:
    if status:
        raise CodecError(f"nvImageCodec: {call} ended with status {status}")
