"""What the ranks run that bench_rpc starts: calls between them by each channel, in turns.

The three benchmarks of TF-gRPC-Bench: latency, a payload is echoed; bandwidth, a payload is
answered by a byte; throughput, each worker calls all servers at once.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from osucaffe.comm.channels.channel import Channel, Pending
from osucaffe.comm.channels.create import make_channel
from osucaffe.comm.job.job import MpiJob, find_job
from osucaffe.comm.job.links import find_interface
from osucaffe.comm.job.topology import discover
from osucaffe.rpc.grpc_stream import OPTIONS, import_grpc, is_of_job
from osucaffe.rpc.ucx import is_available

from . import rpc_payloads as payloads

ROUNDS = 3
_FEWEST = 3  # calls of a round
ECHO, TAKE = "/osucaffe.Payload/Echo", "/osucaffe.Payload/Take"
"""gRPC's calls that give the payload back, or a byte."""


class Calls(ABC):
    """Ranks that call others: every rank makes one, and calls or serves."""

    @abstractmethod
    def prepare(self, buffers: Sequence[np.ndarray], *, echo: bool) -> None:
        """The payload of the calls that follow, and whether it comes back."""

    @abstractmethod
    def call(self, servers: Sequence[int]) -> None:
        """Call these at once; return when all have answered."""

    @abstractmethod
    def serve(self, clients: Sequence[int], count: int) -> None:
        """Answer so many calls of each."""

    @abstractmethod
    def close(self) -> None:
        """All ranks call it together."""


class OverChannel(Calls):
    """Calls by a channel's messages, into and from arrays that stay."""

    def __init__(self, channel: Channel, most: int) -> None:
        """most: bytes of a payload."""
        self._channel = channel
        self._memory = channel.buffer(2 * channel.size * most, "uint8")

    def prepare(self, buffers: Sequence[np.ndarray], *, echo: bool) -> None:
        self._sent = buffers
        count = self._channel.size
        rows = self._memory.reshape(2 * count, -1)
        cuts = np.cumsum([0, *(each.nbytes for each in buffers)])
        own = [[row[a:b] for a, b in itertools.pairwise(cuts)] for row in rows]
        self._into, self._answers = own[:count], own[count:]
        if not echo:
            self._answers = [[row[:1]] for row in rows[count:]]
        self._echo = echo

    def call(self, servers: Sequence[int]) -> None:
        channel = self._channel
        requests = [channel.receive(self._answers[each], each, 2) for each in servers]
        requests += [channel.send(self._sent, each, 1) for each in servers]
        channel.wait(requests)

    def serve(self, clients: Sequence[int], count: int) -> None:
        pending = Pending(self._channel)
        left = dict.fromkeys(clients, count)

        def listen(client: int) -> None:
            request = self._channel.receive(self._into[client], client, 1)
            pending.add(request, lambda: answer(client))

        def answer(client: int) -> None:
            given = self._into[client] if self._echo else self._answers[client]
            done: Callable[[], None] | None = None
            left[client] -= 1
            if left[client]:
                # What comes next overwrites what is echoed: it must have left.
                if self._echo:
                    done = lambda: listen(client)  # noqa: E731
                else:
                    listen(client)
            pending.add(self._channel.send(given, client, 2), done)

        for client in clients:
            listen(client)
        pending.drain()

    def close(self) -> None:
        self._channel.close()


class OverGrpc(Calls):
    """Calls by plain gRPC."""

    def __init__(self, job: MpiJob, address: str) -> None:
        token = job.gather(np.random.default_rng().bytes(16).hex())[0]
        self._server = GrpcServer(address, token)
        places = job.gather(self._server.place)
        self._clients = [GrpcClient(place, token) for place in places]

    def prepare(self, buffers: Sequence[np.ndarray], *, echo: bool) -> None:
        self._sent, self._name = buffers, ECHO if echo else TAKE

    def call(self, servers: Sequence[int]) -> None:
        payload = b"".join(each.data for each in self._sent)
        if len(servers) == 1:
            answer = self._clients[servers[0]].call(self._name, payload)
        else:
            under_way = [self._clients[each].begin(self._name, payload) for each in servers]
            for each in under_way:
                answer = each.result()
        np.frombuffer(answer, np.uint8)

    def serve(self, clients: Sequence[int], count: int) -> None:
        """Threads of gRPC's own do."""

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._server.close()


class GrpcServer:
    """Answers calls at an address that it chooses a port of; `place` is host and port.

    token: what a call must bring.
    """

    def __init__(self, address: str, token: str) -> None:
        grpc = import_grpc()
        self._token = token

        def checked(work: Any) -> Any:
            def handle(payload: bytes, context: Any) -> bytes:
                is_of_job(context, token)
                result: bytes = work(payload)
                return result

            return grpc.unary_unary_rpc_method_handler(handle)

        handlers = {ECHO: checked(lambda payload: payload), TAKE: checked(lambda payload: b"\0")}

        class Calls(grpc.GenericRpcHandler):  # type: ignore[name-defined]
            def service(self, details: Any) -> Any:
                return handlers.get(details.method)

        self._server = grpc.server(ThreadPoolExecutor(4), [Calls()], options=OPTIONS)
        port = self._server.add_insecure_port(f"{address}:0")
        self.place = f"{address}:{port}"
        self._server.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.stop(0).wait()


class GrpcClient:
    """Calls one server."""

    def __init__(self, place: str, token: str) -> None:
        grpc = import_grpc()
        self._link = grpc.insecure_channel(place, options=OPTIONS)
        self._token = (("token", token),)
        self._calls = {name: self._link.unary_unary(name) for name in (ECHO, TAKE)}

    def call(self, name: str, payload: bytes) -> bytes:
        """Return with the answer."""
        answer: bytes = self._calls[name](payload, metadata=self._token)
        return answer

    def begin(self, name: str, payload: bytes) -> Any:
        """A call under way; `result` waits for its answer."""
        return self._calls[name].future(payload, metadata=self._token)

    def close(self) -> None:
        """Call no more."""
        self._link.close()


def meet(job: MpiJob) -> None:
    """A barrier that leaves the cores to those who still work."""
    request = job.world.Ibarrier()
    while not request.Test():
        time.sleep(2e-3)


def measure(
    job: MpiJob,
    ways: dict[str, Calls],
    servers: Sequence[int],
    cases: Sequence[tuple[str, str]],
    seconds: float,
    report: Callable[[str], None],
) -> list[dict[str, Any]]:
    """A row for each case (benchmark, payload): by each way the seconds of a call, median and the
    99th percentile, what the benchmark counts, and the processor's seconds of a call on all ranks,
    which depend little on what else the machine does. The other ranks call the servers; all ranks
    call this together.
    """
    rows = []
    clients = [rank for rank in range(job.size) if rank not in servers]
    for benchmark, payload in cases:
        buffers = payloads.make(payload)
        times: dict[str, list[float]] = {name: [] for name in ways}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for calls in ways.values():
            calls.prepare(buffers, echo=benchmark == "latency")
        counts = {
            name: _count(job, calls, servers, clients, seconds) for name, calls in ways.items()
        }
        work = dict.fromkeys(ways, 0.0)
        for _ in range(ROUNDS):
            for name, calls in ways.items():
                begun = time.process_time()
                own = _round(job, calls, servers, clients, counts[name])
                used = time.process_time() - begun
                for each, whole, seconds_used in job.gather((own, sum(own), used)):
                    times[name] += each
                    work[name] += seconds_used
                    if each:
                        rates[name].append(len(each) * len(servers) / whole)
        row: dict[str, Any] = {
            "benchmark": benchmark,
            "payload": payload,
            "bytes": sum(each.nbytes for each in buffers),
        }
        for name in ways:
            row[name] = {
                "median_s": float(np.median(times[name])),
                "p99_s": float(np.percentile(times[name], 99)),
                "rpc_per_s": float(np.median(rates[name])) * len(clients),
                "processor_s": work[name] / (len(times[name]) * len(servers)),
            }
        rows.append(row)
        shown = ", ".join(f"{name} {row[name]['median_s'] * 1e6:,.0f} us" for name in ways)
        report(f"{benchmark} {payload}: {shown}")
    return rows


def _count(
    job: MpiJob, calls: Calls, servers: Sequence[int], clients: Sequence[int], seconds: float
) -> int:
    """How many calls take about so many seconds, as rank 0 finds."""
    own = _round(job, calls, servers, clients, _FEWEST)
    if clients[0] == job.rank:
        own = [max(_FEWEST, int(seconds / float(np.median(own))))]
    return int(job.gather(own)[clients[0]][0])


def _round(
    job: MpiJob, calls: Calls, servers: Sequence[int], clients: Sequence[int], count: int
) -> list[float]:
    """The seconds of each of so many calls, on a client."""
    meet(job)
    own = []
    if job.rank in clients:
        for _ in range(count):
            begun = time.perf_counter()
            calls.call(servers)
            own.append(time.perf_counter() - begun)
    else:
        calls.serve(clients, count)
    meet(job)
    return own


def main() -> None:
    """Arguments: JSON of the cases and the channels (null: all), how many ranks call the others,
    seconds of a round, how channels wait, and perhaps an interface. Rank 0 prints the rows."""
    text, workers, seconds, waiting, *interface = sys.argv[1:]
    chosen = json.loads(text)
    most = max(sum(payloads.sizes(payload)) for _, payload in chosen["cases"])
    job = find_job()
    with job.together():
        assert isinstance(job, MpiJob)
        topology = discover(job)
        name = interface[0] if interface else None
        _, address = find_interface(name, alone=len(topology.hosts) == 1)
        busy = waiting == "busy"

        def channel(kind: str, *, busy: bool = busy, direct: bool = True) -> OverChannel:
            made = make_channel(job, topology, kind, name, busy=busy, direct=direct)
            return OverChannel(made, most)

        kinds: dict[str, Callable[[], Calls]] = {
            "mpi": lambda: channel("mpi", busy=True),  # it always looks: it cannot wake who sleeps
            "adaptive": lambda: channel("adaptive"),
            **({"ucx": lambda: channel("ucx")} if is_available() else {}),
            "sockets": lambda: channel("adaptive", direct=False),
            "stream": lambda: channel("grpc"),
        }
        wanted = chosen["channels"] or kinds
        ways = {kind: kinds[kind]() for kind in kinds if kind in wanted}
        ways["grpc"] = OverGrpc(job, address)
        cases = [(benchmark, payload) for benchmark, payload in chosen["cases"]]

        def report(line: str) -> None:
            if job.rank == 0:
                print(line, file=sys.stderr, flush=True)

        servers = range(int(workers), job.size)
        rows = measure(job, ways, servers, cases, float(seconds), report)
        for way in ways.values():
            way.close()
        if job.rank == 0:
            print(json.dumps(rows))


if __name__ == "__main__":
    main()
