"""Owns the options of the commands about this machine and others."""

from __future__ import annotations

from .options import COUNT, EXTENT, INTEGER, MEGABYTES, SECONDS, Kind, Options, names, positive


def device_query(add: Options) -> None:
    """Print what osucaffe can run on: CPU, memory, libraries, GPUs; with --mpi, all ranks.

      osucaffe device_query
      mpiexec -n 4 osucaffe device_query --mpi

    Rank 0 prints what all ranks found."""
    add("--gpu", 'which GPUs: "0,1"', "IDS", "all")
    add("--mpi", "show hosts, ranks, links and the MPI library instead")
    add.common("--json")
    add.parser.set_defaults(threads=None, servers=0)


def tune(add: Options) -> None:
    """Measure the communication algorithms on this machine, and write a tuning table.

      osucaffe tune --ranks 4            four ranks on this machine
      mpiexec -n 16 osucaffe tune        the ranks of a job
      osucaffe tune --gpu all            NCCL and ipc among the GPUs of this machine
      osucaffe tune --ranks 4 --designs solver.prototxt
                                         which design trains this net the fastest here, on CPUs:
                                         all-reduce, ring, tree, sharded or servers

    Later runs use the table automatically. Entries for other numbers of ranks are kept."""
    add("--ranks", "start N ranks on this machine", COUNT)
    add("--gpu", 'measure between GPUs: "0,1", or "all"', "IDS")
    add(
        "--designs",
        "train the net of this solver with each design in turn, and compare them",
        "SOLVER",
    )
    add("--seconds", "seconds of each turn", SECONDS, 2.0)
    add(
        "--out",
        "the table to write (default: the user's own); with --designs, a picture to draw",
        "FILE",
    )
    add("--max_mb", "the largest arrays to measure, in MB", MEGABYTES, 64.0)
    add.starts_ranks()


def predict(add: Options) -> None:
    """Predict how long training takes on a cluster that is not at hand, and which design wins.

      osucaffe predict --solver solver.prototxt --cluster clusters/dgx-h100.toml --ranks 1,2,...,512
      osucaffe predict --solver solver.prototxt --cluster here.toml --ranks 2,4 --measure 20
      osucaffe predict --solver solver.prototxt --cluster here.toml --ranks 2,4 --times times.json

    The code that trains runs with a communicator that only notes what is asked of it, rank by rank;
    then the same schedules of messages are carried out over a model of the cluster's links. How
    long layers compute is measured here (--measure N iterations; --save_times keeps it), read
    (--times), or made from the cluster's file: from images a second of this net, or from the
    device's rates. Data that is not here is not needed where layers say crop_size.

    An iteration's time is a median, with what a tenth of all iterations are below and above, where
    the cluster's file says how much ranks differ (stragglers). Efficiency: of ranks that need not
    communicate."""
    _case(add, "four of them")
    add("--out", "write the numbers (JSON, or FILE.csv), and a picture beside it (.png)", "FILE")


def study(add: Options) -> None:
    """Compare all designs by numbers of ranks: predicted for a cluster, measured on this machine.

      osucaffe study --solver solver.prototxt --cluster clusters/dgx-h100.toml --ranks 1,2,...,512
      osucaffe study --solver solver.prototxt --cluster here.toml --servers 1 --measure 20

    Writes one HTML page without external resources: the fastest design for each number of ranks,
    curves of images a second, of efficiency and of exposed communication (what of an iteration a
    rank only waits for others), the options of osucaffe train for each design, and all numbers,
    which stand in a CSV beside it, too.

    Predictions are those of osucaffe predict. Measured is what fits here: ranks of this machine,
    with servers, up to --local_ranks processes, which train for a moment by each design and write
    nothing. Records are made up where layers say crop_size, and read elsewhere."""
    _case(add, "all of them")
    add("--out", "the page to write", "FILE", "study.html")
    add(
        "--local_ranks",
        "measure with at most N processes (default: one for each core; 0: predict only)",
        EXTENT,
    )
    add("--seconds", "how long each design trains here, about", SECONDS, 3.0)


def _case(add: Options, default: str) -> None:
    """What is predicted. default: in words, which designs are."""
    add("--solver", "the solver's prototxt", "FILE", required=True)
    add("--cluster", "the cluster's file (TOML)", "FILE", required=True)
    add(
        "--set",
        'put another value in the cluster\'s file: "stragglers.sigma=0.06" (may be repeated)',
        "FIELD=VALUE",
        [],
        action="append",
    )
    add("--ranks", "numbers of ranks; three dots go on by doubling", "LIST", "1,2,4,...,64")
    add(
        "--designs",
        "some of SC-B, SC-OB, SC-OBR, all-reduce behind, all-reduce, sharded, split, Horovod, "
        f"servers, servers behind, with commas (default: {default}, and with --servers those "
        "with these)",
        "LIST",
    )
    add(
        "--servers",
        "parameter servers (--consistency sync): K, ranked behind the others as in training, or "
        "K/host, K beside the ranks of each host",
        "K",
    )
    add(
        "--gradient_type",
        "the data type of gradients on the wire, but not to servers",
        ("float32", "bfloat16", "float16"),
        "float32",
    )
    add("--batch", "another batch_size than the net's", COUNT)
    add(
        "--scal",
        "batch_size is each rank's (weak, the default) or is divided among them (strong)",
        ("weak", "strong"),
        "weak",
    )
    add.bucket("the least that travels at once; auto: what takes the least time")
    add("--algorithm", "as in osucaffe train", "NAME", "auto")
    add.common("--tuning")
    add("--flat", "no levels: one communicator over all ranks")
    add("--iterations", "iterations of each prediction", COUNT, 10)
    add("--seed", "of the stragglers", INTEGER, 1)
    times = add.one_of()
    times("--times", "measured times of the layers (JSON)", "FILE")
    times("--measure", "measure them here, N times", COUNT)
    add("--save_times", "where --measure writes them", "FILE")
    add(
        "--threads",
        "of what is measured here (default: a rank's share of the cores, with as many ranks as the "
        "cluster has on a host, as in training)",
        COUNT,
    )


def bench(add: Options) -> None:
    """Benchmark calls between processes over each channel, compared with plain gRPC.

      osucaffe bench rpc                          two processes, then workers and servers
      osucaffe bench rpc --out results            also write results/rpc-DATE.md and .json
      osucaffe bench rpc --hosts 2 --rate 1gbit   between hosts made of network namespaces (as root)
      osucaffe bench rpc --benchmarks latency --payloads 64,skew --channels adaptive --plot rpc.png

    The benchmarks and payloads are those of TF-gRPC-Bench. All channels take turns. Needs
    osucaffe's source, which has the folder benchmarks."""
    add("what", "calls with payloads of several buffers", ["rpc"])
    add("--workers", "throughput benchmark: number of callers", COUNT, 3)
    add(
        "--servers",
        "throughput benchmark: number of servers that each calls",
        Kind("K", positive),
        2,
    )
    add("--seconds", "how long each round of each channel takes", SECONDS, 0.3)
    add(
        "--hosts",
        "2: callers and servers on separate hosts, made of network namespaces (needs root, "
        "iproute2 and MPICH)",
        (1, 2),
        1,
        type=int,
        metavar="H",
    )
    kinds = "mpi", "adaptive", "ucx", "sockets", "stream"
    add(
        "--benchmarks", "some of latency, bandwidth, throughput (default: all)", Kind("LIST", names)
    )
    add(
        "--payloads",
        "some of small, medium, large, uniform, random, skew, or bytes (default: all)",
        Kind("LIST", names),
    )
    add("--channels", f"some of {', '.join(kinds)} beside gRPC (default: all)", Kind("LIST", names))
    add("--plot", "draw how many times better than gRPC each is", "FILE")
    add("--rate", "rate of the link between them, as tc writes it", "RATE", "10gbit")
    add("--out", "write the results there, as Markdown and JSON", "DIR")
    add("--peer", "also measure plain gRPC in C++: the program that make grpc-peer builds", "FILE")
    add.common("--channel_wait", "--interface")


def version(add: Options) -> None:
    """Print the version, as --version does.

    osucaffe version --json     with those of Python and NumPy"""
    add.common("--json")


def completion(add: Options) -> None:
    """Print a completion script for bash, zsh or fish.

    eval "$(osucaffe completion bash)"                in ~/.bashrc
    eval "$(osucaffe completion zsh)"                 in ~/.zshrc
    osucaffe completion fish > ~/.config/fish/completions/osucaffe.fish"""
    add("shell", "the shell to print a script for", ("bash", "zsh", "fish"))
