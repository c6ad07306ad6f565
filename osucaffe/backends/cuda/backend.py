"""The CUDA backend: a GPU (gpu.py) that prepares calls, and captures their steps as graphs."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from .. import primitives as ops
from ..backend import Prepared
from ..primitives.recording import Primitive
from ..records import ScaledCrops
from ..tensor import Run, Shape, Step, Tensor, sequence
from . import registry
from .autotune.trial import trial_numbers
from .autotune.tuner import Tuner
from .call import Context, Pending, Provider, TuningGpu
from .convolution.implicit_gemm import adds_gradient
from .graphs import capture, on_other_stream, schedule
from .input.jpegs import Decoder, find_decoder
from .input.mapped_file import MappedFile, map_file
from .input.photos import DevicePhotos
from .input.upload import DeviceUploads
from .libraries import cudnn
from .runtime.background import shared_interpreter
from .runtime.compile import texts
from .runtime.out_of_memory import translate_oom
from .timer import DeviceTimer


class Cuda(TuningGpu):
    """Runs nets on one GPU.

    number: of the GPU. precision: "fp32", "tf32", "bf16" or "fp16": what convolutions and products
    compute in, and in the 16-bit ones also what blobs are held in; parameters, their gradients,
    history and sums are float32 always. graphs: replay what is captured as CUDA graphs.
    """

    name = "cuda"
    fuses_relu_backward = (
        ops.AveragePoolingBackward, ops.ConvolutionBackwardData, ops.DropoutBackward,
        ops.InnerProductBackwardData, ops.LrnBackward, ops.MaxPoolingBackward, ops.Split, ops.Sum,
    )  # fmt: skip
    enabled_passes = frozenset(
        ("skip pixels", "normalize in pooling", "copy parts once", "sum outputs")
    )
    overlaps = (ops.ConvolutionBackwardFilter, ops.InnerProductBackwardFilter, ops.Total)
    raw_records = True
    """A byte a pixel is quicker to upload than a float, and `transform` takes no time here."""

    def __init__(
        self, number: int = 0, precision: str | None = "fp32", *, graphs: bool = True
    ) -> None:
        super().__init__(number, precision)
        registry.load()
        self.graphs = graphs
        self._image_decoders: dict[bool, Decoder | None] = {}

    @functools.cached_property
    def tuner(self) -> Tuner:
        """What chooses among candidates, by timing them on this device: again, where the libraries
        or our kernels have changed."""
        kernels = f"{zlib.crc32(texts().encode()):08x}"
        libraries = f"cudnn {cudnn.version()}, cublaslt {self.products.version}"
        return Tuner(self, f"{self.properties.name}, {libraries}, kernels {kernels}")

    @functools.cached_property
    def trial_source(self) -> Tensor:
        """Where memory to try candidates on is copied from."""
        return self.upload(trial_numbers())

    def tune(self, ctx: Context, providers: Sequence[Provider]) -> Pending:
        """Begin to choose among what these offer."""
        return self.tuner.begin(ctx, providers)

    def adds_gradient(self, call: Primitive) -> bool:
        if isinstance(call, ops.ConvolutionBackwardData):
            return adds_gradient(self, call)
        return isinstance(call, ops.AveragePoolingBackward | ops.MaxPoolingBackward)

    def image_decoder(self, *, always: bool) -> Decoder | None:
        """The device's JPEG engines, if it has any; always: else its multiprocessors."""
        if always not in self._image_decoders:
            self._image_decoders[always] = find_decoder(self, always=always)
        return self._image_decoders[always]

    def photo_scaler(self, crops: ScaledCrops, shape: Shape) -> DevicePhotos:
        """A kernel that scales photos after their upload."""
        return DevicePhotos(self, crops, shape)

    def map_file(self, file: BinaryIO) -> MappedFile | None:
        """What copies records from a file into this device's memory; None where it cannot be."""
        return map_file(self, file)

    def uploads(self) -> DeviceUploads:
        """Copies to the device's memory that overlap its steps."""
        return DeviceUploads(self)

    def memory_in_use(self) -> dict[str, int]:
        """Bytes that this backend holds besides a net's own, by purpose."""
        return {
            "16-bit copies of the parameters": sum(map(self.nbytes, self._copies.values())),
            "all of the GPU's memory that is in use here": (
                self.cupy.get_default_memory_pool().used_bytes()
            ),
        }

    def timer(self) -> DeviceTimer:
        """A clock for parts of a net's steps."""
        return DeviceTimer(self)

    # -- steps -----------------------------------------------------------------------------------

    @translate_oom
    def prepare(self, calls: Iterable[Primitive], beside: Sequence[Primitive] = ()) -> list[Step]:
        """The steps that run calls. Layouts of their flexible tensors are chosen from here on."""
        with shared_interpreter():
            steps = [Step(translate_oom(run)) for run in registry.prepare(self, calls)]
        if "cudnn" in self.__dict__:  # made when it is first needed
            self.cudnn.forget()
        return steps

    def schedule(self, calls: Sequence[Prepared]) -> list[Run]:
        """The steps of the calls in their order; some that may overlap others on another stream."""
        return schedule(self, calls)

    def low_priority(self, step: Run) -> Run:
        """A step that runs another after what is enqueued so far, in the room that what follows
        leaves on the device; `join_low_priority` waits for it."""
        return on_other_stream(self, self.low_priority_stream, step)

    def join_low_priority(self) -> None:
        """Let what follows run after all that runs at `low_priority`."""
        done = self.cupy.cuda.Event(disable_timing=True)
        done.record(self.low_priority_stream)
        self.current.wait_event(done)

    def capture(self, steps: Sequence[Run]) -> Run:
        """One step that runs these: as they are at first, then as one CUDA graph."""
        return translate_oom(capture(self, steps) if self.graphs else sequence(steps))
