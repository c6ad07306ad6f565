"""The options that several commands have: nets and their weights, devices, ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..data.config import IGNORE_EXIF, ON_BAD_RECORD, READERS
from ..errors import UserError
from ..options.flags import REQUIRED, field_of, flag, group, like
from ..options.kinds import COUNT, Kind, files, integer, share, stages

if TYPE_CHECKING:
    from ..proto import SolverParameter

JSON = flag("print the results as JSON, for scripts")
LOG_DIR = flag(
    "also write the log to a new file in DIR", "DIR", ranks="own", excluded_by=("--find_lr",)
)
MODEL = flag("the net's prototxt", "NET", REQUIRED, positional=True)
WEIGHTS = flag("the trained model", Kind("FILES", files), [], ranks="file")
ONE_MODEL = flag("the trained model", "FILE", REQUIRED, name="--weights")
STRICT = flag(
    "stop if a layer is missing from the weights file, or the other way round", often=False
)
PHASE = flag("which phase's layers", ("TRAIN", "TEST"), "TRAIN", type=str.upper)
SOLVER = flag("the solver's prototxt", "FILE", REQUIRED, ranks="own")
OUT = flag("the folder to write to", "DIR", REQUIRED)
PAGE = flag("the page to write", "FILE", REQUIRED)
VAL_SHARE = flag("the share held out for validation", Kind("X", share), 0.2)
FROM = flag("a .caffemodel to fine-tune", "FILE", name="--from")
LABELS = flag("names of the classes, one per line", "FILE")
ENCODE_TYPE = flag("compress the records: jpg or png", "TYPE", "")
BACKEND = flag("the kind of database", ("lmdb",), "lmdb")
ITERATIONS = flag("number of passes", COUNT, 50)
NO_PYTHON_LAYERS = flag(
    "refuse Python layers of modules that are not osucaffe's: what a net of unknown origin needs",
    environment="OSUCAFFE_NO_PYTHON_LAYERS",
    often=False,
)


@dataclass(frozen=True)
class State:
    """Which layers of the net."""

    level: int = flag("the net's level (default: 0)", Kind("N", integer(-(2**31) + 1)), 0)
    stages: list[str] = flag(
        "the net's stages, separated by commas", Kind("NAMES", stages), [], name="--stage"
    )

    def add_to(self, param: SolverParameter) -> None:
        """Let a solver's nets have these layers."""
        param.train_state.level = self.level or param.train_state.level
        param.train_state.stage.extend(self.stages)


@dataclass(frozen=True)
class Device:
    """Where it runs."""

    gpu: str | None = flag(
        "the number of the GPU (default: the CPU)", "ID", often=True, ranks="own"
    )
    precision: str | None = flag(
        "what the GPU computes in (default: tf32 from Ampere on, fp32 before); "
        "parameters stay in fp32",
        ("fp32", "tf32", "bf16", "fp16"),
        often=True,
    )
    no_graph: bool = flag("launch the GPU's kernels one by one, not as CUDA graphs (for debugging)")
    # Of a million threads oneDNN dies.
    threads: int | None = flag(
        "CPU threads (default: OMP_NUM_THREADS, or one per core)",
        Kind("N", integer(1, 1024)),
        ranks="own",
    )

    def check(self) -> None:
        """UserError for an option of GPUs without --gpu."""
        for option in ("precision", "no_graph"):
            if self.gpu is None and getattr(self, option):
                raise UserError(f"--{option} is for GPUs only: add --gpu 0")


@dataclass(frozen=True)
class Devices(Device):
    """Where it runs, with a rank on each of several GPUs."""

    gpu: str | None = like(
        field_of(Device, "gpu"),
        'the number of the GPU; "0,1" or "all": a rank on each (default: the CPU)',
    )


@dataclass(frozen=True)
class Ranks:
    """How many ranks are started on this machine."""

    ranks: int | None = flag(
        "start N ranks on this machine (or start them by mpiexec or srun)",
        COUNT,
        often=True,
        excluded_by=("--find_lr", "--ranks_per_gpu"),
    )


@dataclass(frozen=True, kw_only=True)
class NetOptions:
    """A net with its weights, and where it runs."""

    weights: list[str] = like(WEIGHTS)  # before the model, as arguments of extract_features
    model: str = like(MODEL)
    strict: bool = like(STRICT)
    no_python_layers: bool = like(NO_PYTHON_LAYERS)
    state: State = group(State)
    device: Device = group(Device)


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Where a net runs, on several ranks that share the batches."""

    device: Device = group(Devices, "where it runs")
    ranks: Ranks = group(
        Ranks, "several ranks", "The ranks share the batches; rank 0 prints the results."
    )

    @property
    def starts(self) -> tuple[Ranks, Device]:
        """What `launch` starts."""
        return self.ranks, self.device


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Records that are read by several threads."""

    readers: int | None = like(READERS)
    skip_bad: bool = like(ON_BAD_RECORD)
    ignore_exif: bool = like(IGNORE_EXIF)
