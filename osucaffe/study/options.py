"""The options of the commands that predict and compare designs of training."""

from __future__ import annotations

from dataclasses import dataclass

from ..cli.options import NO_PYTHON_LAYERS, PAGE, SOLVER
from ..comm.config import TUNING, CommConfig
from ..options.flags import REQUIRED, OneOf, field_of, flag, like
from ..options.kinds import COUNT, EXTENT, INTEGER, SECONDS
from ..parallel.config import ParallelConfig, ServerConfig

_TIMES = OneOf("times")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is predicted."""

    solver: str = like(SOLVER)
    cluster: str = flag("the cluster's file (TOML)", "FILE", REQUIRED)
    set: list[str] = flag(
        'put another value in the cluster\'s file: "stragglers.sigma=0.06" (may be repeated)',
        "FIELD=VALUE",
        [],
        action="append",
    )
    ranks: str = flag("numbers of ranks; '...' continues by doubling", "LIST", "1,2,4,...,64")
    designs: str | None = flag(
        "some of SC-B, SC-OB, SC-OBR, all-reduce behind, all-reduce, sharded, split, Horovod, "
        "servers, servers behind, with commas (default: four of them, and with --servers those "
        "with these)",
        "LIST",
    )
    servers: str | None = flag(
        "parameter servers: K, the last ranks as in training, or K/host, K "
        "next to the ranks of each host",
        "K",
    )
    consistency: str = like(field_of(ServerConfig, "consistency"))
    gradient_type: str = like(
        field_of(CommConfig, "gradient_dtype"),
        "the data type of gradients on the wire, but not to servers",
    )
    aggregation: str | None = flag("also predict an aggregation of your own", "MODULE:CLASS")
    compression: str = like(
        field_of(ParallelConfig, "compression"),
        "also predict all-reduce with what train's --compression names",
    )
    local_steps: int = like(
        field_of(ParallelConfig, "local_steps"),
        "also predict that weights are averaged after each H iterations",
    )
    reproducible: bool = flag("also predict train's --reproducible")
    batch: int | None = flag("another batch_size than the net's", COUNT)
    scal: str = like(
        field_of(ParallelConfig, "scaling"),
        "batch_size is each rank's (weak, the default) or is divided among them (strong)",
    )
    bucket: int = like(
        field_of(ParallelConfig, "bucket"),
        "minimum bucket size; auto: the fastest",
    )
    algorithm: str = like(field_of(CommConfig, "algorithm"), "as in osucaffe train")
    tuning: str | None = like(TUNING)
    flat: bool = flag("no levels: one communicator over all ranks")
    iterations: int = flag("iterations of each prediction", COUNT, 10)
    seed: int = flag("random seed of the stragglers", INTEGER, 1)
    times: str | None = flag("measured times of the layers (JSON)", "FILE", one_of=_TIMES)
    measure: int | None = flag("measure them here, N times", COUNT, one_of=_TIMES)
    save_times: str | None = flag("where --measure writes them", "FILE")
    threads: int | None = flag(
        "of what is measured here (default: a rank's share of the cores, with as many ranks as the "
        "cluster has on a host, as in training)",
        COUNT,
    )


@dataclass(frozen=True, kw_only=True)
class Predict(Question):
    """
      osucaffe predict --solver solver.prototxt --cluster clusters/dgx-h100.toml --ranks 1,2,...,512
      osucaffe predict --solver solver.prototxt --cluster here.toml --ranks 2,4 --measure 20
      osucaffe predict --solver solver.prototxt --cluster here.toml --ranks 2,4 --times times.json

    The code that trains runs with a communicator that only notes what is asked of it, rank by rank;
    then the same schedules of messages are carried out over a model of the cluster's links. How
    long layers compute is measured here (--measure N iterations; --save_times keeps it), read
    (--times), or made from the cluster's file: from images per second of this net, or from the
    device's rates. Data that is not here is not needed where layers say crop_size.

    An iteration's time is a median, with what a tenth of all iterations are below and above, where
    the cluster's file says how much ranks differ (stragglers). Efficiency: of ranks that need not
    communicate."""

    out: str | None = flag(
        "write the numbers (JSON, or FILE.csv), and a picture next to it (.png)", "FILE"
    )


@dataclass(frozen=True, kw_only=True)
class Study(Question):
    """
      osucaffe study --solver solver.prototxt --cluster clusters/dgx-h100.toml --ranks 1,2,...,512
      osucaffe study --solver solver.prototxt --cluster here.toml --servers 1 --measure 20

    Writes one HTML page without external resources: the fastest design for each number of ranks,
    curves of images per second, of efficiency and of exposed communication (what of an iteration a
    rank only waits for others), the options of osucaffe train for each design, and all numbers,
    which stand in a CSV beside it, too.

    Predictions are those of osucaffe predict. Measured is what fits here: ranks of this machine,
    with servers, up to --local_ranks processes, which train for a moment by each design and write
    nothing. Records are made up where layers say crop_size, and read elsewhere."""

    designs: str | None = like(
        field_of(Question, "designs"),
        field_of(Question, "designs").metadata["flag"].help.replace("four of them", "all of them"),
    )
    out: str = like(PAGE, default="study.html")
    local_ranks: int | None = flag(
        "measure with at most N processes (default: one for each core; 0: predict only)", EXTENT
    )
    seconds: float = flag("how long each design trains here, about", SECONDS, 3.0)
    no_python_layers: bool = like(NO_PYTHON_LAYERS)
