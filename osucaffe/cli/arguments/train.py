"""Owns the options of `osucaffe train`."""

from __future__ import annotations

from ...comm.channels import KINDS
from .options import COUNT, SECONDS, Kind, Options, auto_or, not_negative, positive, share

_EFFECTS = ("stop", "snapshot", "none")


def fit(add: Options) -> None:
    """Train a classifier on a folder of photographs: from the folder to a model and its report.

      osucaffe fit photos --out run
      osucaffe fit photos --out run --from bvlc_googlenet.caffemodel       fine-tune

    PHOTOS holds a folder of images for each class. Databases, net and solver, training with early
    stopping, test and report are made by the commands data folder, new, train, test and report,
    which are printed, and can be run again one by one. The net is a small one, with photographs
    scaled to 48 to 64 pixels, or on a GPU with 20,000 photographs and more, ResNet-50."""
    add("photos", "a folder that holds one folder of images per class", "PHOTOS")
    add("--out", "the folder to write to", "RUN", required=True)
    add("--model", "a model of `osucaffe models` to train, or the net of --from", "NET")
    add("--from", "a .caffemodel to fine-tune", "FILE", dest="weights")
    add("--size", "width and height of the stored images (default: as it suits the net)", COUNT)
    add("--val_share", "the share held out for validation", Kind("X", share), 0.2)
    add("--epochs", "number of epochs (default: as of osucaffe new)", COUNT)
    add.common("--on_bad_record")
    add("--gpu", "the number of the GPU; several, or all (default: the CPU)", "ID")


def train(add: Options) -> None:
    """Train a net as a solver file says.

      osucaffe train --solver solver.prototxt
      osucaffe train --solver solver.prototxt --weights pretrained.caffemodel    fine-tune
      osucaffe train --solver solver.prototxt --snapshot auto                    resume
      osucaffe train --solver solver.prototxt --best accuracy --keep 2           keep the best
      osucaffe train --solver solver.prototxt --ranks 4                          four processes
      mpiexec -n 4 osucaffe train --solver solver.prototxt                       the same
      osucaffe train --solver solver.prototxt --ranks 4 --servers 1              a parameter server

    Ctrl-C, like SIGTERM, finishes the current iteration, writes a snapshot and stops; a second
    Ctrl-C stops at once, and leaves nothing half-written. SIGHUP writes a snapshot and goes on.
    That is so with several ranks, too, if this command starts them. Where mpiexec or srun does,
    send SIGHUP to a rank (`scancel --signal=HUP JOB.0`), as mpiexec itself would end.
    On a terminal a live display follows the log.

    Exit codes: 0 done, or nothing left to train; 1 bad input; 2 wrong usage; 3 the loss is nan or
    infinite; 4 a rank failed, or waited too long, and ended the others; 128 + N stopped
    by signal N with a snapshot (129 SIGHUP, 130 SIGINT, 143 SIGTERM): the end of the log has the
    command that resumes. Each of several ranks has its own exit code."""
    add("--solver", "the solver's prototxt", "FILE", required=True)
    start = add.one_of()
    start(
        "--snapshot",
        'resume from this .solverstate; "auto": from the newest complete one, if there is one',
        "FILE",
    )
    start.common(
        "--weights",
        help="start from the weights in these files, by layer name (separated by commas)",
    )
    add.common("--strict")
    add("--max_iter", "train up to iteration N, instead of the solver's max_iter", COUNT)
    add(
        "--find_lr",
        "propose a learning rate: train a little (--max_iter: so many iterations) with growing "
        "ones, and draw the losses in PAGE (default: find_lr.html)",
        "PAGE",
        nargs="?",
        const="find_lr.html",
    )
    add(
        "--on_nan",
        "when a displayed loss is nan or infinite: stop without a snapshot (default), or go on, "
        "as Caffe does",
        ("stop", "continue"),
        "stop",
    )
    add("--sigint_effect", "what SIGINT (Ctrl-C) does", _EFFECTS, "stop")
    add("--sighup_effect", "what SIGHUP does", _EFFECTS, "snapshot")
    add.common("--log_dir")
    add("--trace", "write a Chrome trace (JSON) of a few iterations, layer by layer", "FILE")
    add("--tensorboard", "write event files for TensorBoard", "DIR")
    add("--no_progress", "show no live display on the terminal")
    _keeping(add.group("which models to keep"))
    add(
        "--loss_scale",
        'loss scaling: "dynamic", "none" or a factor (default: dynamic in fp16, else none)',
        "SCALE",
    )
    add.state()
    add.device('the number of the GPU; "0,1" or "all": a rank on each')
    _data(add)
    ranks(add)


def ranks(add: Options) -> None:
    """How several ranks are started, what each computes, and how they talk."""
    add = add.group(
        "several ranks", "Started by mpiexec or srun, by --ranks, or by --gpu with several numbers."
    )
    _starting(add)
    _design(add)
    _servers(add)
    _communication(add)


def _keeping(add: Options) -> None:
    add("--keep", "keep only the newest N snapshots of this run", COUNT)
    add(
        "--best",
        "keep the model with the best test value of this output (of accuracy the highest, of "
        "loss the lowest) as PREFIX_best.caffemodel",
        "OUTPUT",
    )
    add("--patience", "early stopping: end after N tests without a better value of --best", COUNT)


def _data(add: Options) -> None:
    add.common("--readers", "--on_bad_record", "--ignore_exif")
    add(
        "--shuffle",
        "train on the records in a new order each epoch, in blocks of BLOCK records (default: "
        "256); all data layers of a net bring theirs in the same order",
        Kind("BLOCK", positive),
        nargs="?",
        const=256,
    )
    add(
        "--decode",
        "what decodes JPEGs in an LMDB that are read anew in each epoch: the CPU (host); the "
        "GPU (gpu); or what is faster (auto, the default): the JPEG engines of a single GPU, if it "
        "has any, as an H100 or H200 does, for images from 200x200 on; else the CPU",
        ("auto", "host", "gpu"),
        "auto",
    )
    add(
        "--cache",
        "where records are kept after the first read: on the GPU, divided among the GPUs of a "
        "host if they don't fit on each (device); decoded in host memory (host); or nowhere "
        "(none). The default, auto, keeps them on the GPU if they fit, else keeps compressed "
        "images decoded in host memory if they fit there",
        ("auto", "device", "host", "none"),
        "auto",
    )


def _starting(add: Options) -> None:
    add("--ranks", "start N ranks on this machine", COUNT)
    add(
        "--ranks_per_gpu",
        "start N ranks on each GPU of --gpu, under MPS if it can be started; auto: try 1, 2, "
        "4 .. and use what trains most images per second. batch_size is per rank, unless --scal "
        "strong divides it",
        Kind("N", auto_or(positive)),
    )
    add(
        "--max_restarts",
        "when a process of the run dies, restart it from its newest complete snapshot, "
        "at most N times",
        COUNT,
        0,
    )
    add(
        "--elastic",
        "with --max_restarts: restart on the ranks that are left, on as many as divide the "
        "global batch, which stays the same",
    )
    add.parser.set_defaults(batches_of=1)


def _design(add: Options) -> None:
    """The division of computation and communication."""
    add(
        "--scal",
        "weak scaling: batch_size is per rank (the default); strong: it is divided among the ranks",
        ("weak", "strong"),
        "weak",
    )
    add(
        "--aggregation",
        "exchange gradients after backward (blocking), or bucket by bucket during it "
        "(layerwise, the default)",
        ("blocking", "layerwise"),
        "layerwise",
    )
    add(
        "--propagation",
        "how updated weights reach the ranks. none: each rank updates all of them; blocking, "
        "overlapped: rank 0 updates them and broadcasts before or during the next forward; "
        "sharded: each rank updates a part and all gather; auto (the default): sharded on GPUs "
        "of one host, else none",
        ("auto", "none", "blocking", "overlapped", "sharded"),
        "auto",
    )
    add.bucket(
        "the smallest bucket: of gradients during backward, or of weights during forward; auto: "
        "try several sizes in the first iterations, and keep the fastest"
    )
    add(
        "--gradient_type",
        "the data type of gradients on the wire",
        ("float32", "bfloat16", "float16"),
        "float32",
    )
    add(
        "--compression",
        "what each rank sends of its gradients; what it lacks comes later (error feedback). "
        "topk:SHARE, randomk:SHARE: the largest, or a random, share of them; powersgd:RANK: "
        "matrices of low rank; 8bit; sign: a bit each (default: none)",
        "KIND",
        "none",
    )
    add(
        "--reproducible",
        "sum gradients so that bucket size, algorithm and communicator change no bit of the sum, "
        "nor the number of ranks, as long as ranks x iter_size stays the same",
    )
    add(
        "--local_steps",
        "exchange no gradients, but average the ranks' weights after each H iterations",
        Kind("H", positive),
        0,
    )
    add("--local_after", "with --local_steps: until iteration N, after each one", COUNT, 0)
    add(
        "--outer_lr",
        "with --local_steps: the learning rate of the step from the last common weights to the "
        "new mean (default: 1, the mean itself; DiLoCo: 0.7)",
        Kind("LR", not_negative),
        1.0,
    )
    add(
        "--outer_momentum",
        "with --local_steps: Nesterov's momentum of that step (default: 0; DiLoCo: 0.9)",
        Kind("M", not_negative),
        0.0,
    )
    add(
        "--split_inner_products",
        "divide the weights of these InnerProduct layers among the ranks, and send activations, "
        "not gradients: names, separated by commas, or auto: those for which that is less",
        "NAMES",
        "none",
    )


def _servers(add: Options) -> None:
    add(
        "--servers",
        "parameter servers: the last K of the ranks do not train, but hold and update the weights",
        Kind("K", positive),
        0,
    )
    add(
        "--consistency",
        "with --servers: an update is of all workers' gradients (sync, the default), all but the "
        "last B (backup:B), or of each one's; then none gets more than N iterations ahead of "
        "another (ssp:N), or any number (async)",
        "KIND",
        "sync",
    )
    add("--channel", "with --servers: what carries the messages", KINDS, "mpi")
    add.common("--channel_wait", "--interface")


def _communication(add: Options) -> None:
    """How it travels."""
    add(
        "--comm",
        "communicator: mpi, hierarchical, or for GPUs nccl, ipc, nccl+ipc, copy (default: "
        "auto, which depends on where the ranks are)",
        "KIND",
        "auto",
    )
    add(
        "--algorithm",
        "algorithm of collective operations (default: auto, as the tuning table says)",
        "NAME",
        "auto",
    )
    add(
        "--check",
        "compare the ranks' weights every N iterations, and stop if they differ",
        COUNT,
        0,
    )
    add.common("--tuning")
    add(
        "--comm_timeout",
        "stop when a rank waits longer than S seconds for others (0: never; default: 300)",
        SECONDS,
        300.0,
    )
    add(
        "--group",
        "treat each N ranks of a machine as a machine of their own, to try out hierarchies",
        COUNT,
        0,
    )
    add(
        "--comm_profile",
        "profile communication: print a table at the end, and write FILE (JSON), a picture "
        "(.png) and a Chrome trace (.trace.json)",
        "FILE",
    )
