"""The list of what one captured iteration of LeNet runs, which docs/tour.md shows: run
`python -m tests.project.tour` to print it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from osucaffe.backends.backend import Prepared
from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.primitives.recording import Primitive
from osucaffe.backends.tensor import Run, Step, Tensor
from osucaffe.proto.files import read_net, read_solver
from osucaffe.solvers.solver import Solver

LENET = Path(__file__).parents[2] / "models" / "lenet"


class _Listing(Cpu):
    """A CPU that is offered what a GPU is, and keeps the calls that it would capture."""

    fuses_relu_backward = Cuda.fuses_relu_backward
    overlaps = Cuda.overlaps
    enabled_passes = Cuda.enabled_passes

    def __init__(self) -> None:
        super().__init__()
        self.captured: list[Primitive] = []
        self.others: list[Primitive] = []

    def prepare(self, calls: Iterable[Primitive], beside: Sequence[Primitive] = ()) -> list[Step]:
        calls = [*calls]
        self.others += [call for call in calls if not call.layer and call.name != "total"]
        return super().prepare(calls, beside)

    def schedule(self, calls: Sequence[Prepared]) -> list[Run]:
        self.captured = [call for call, _ in calls if call.name != "mark"]
        return super().schedule(calls)


def lines() -> Iterator[str]:
    """A line for each call, in the order in which an iteration runs them."""
    backend = _Listing()
    net = read_net(LENET / "train_val.prototxt")
    for layer in net.layer:
        if layer.type == "Data":
            layer.ClearField("transform_param")
            layer.ClearField("data_param")
            layer.type = "Input"
            for shape in [64, 1, 28, 28], [64]:
                layer.input_param.shape.add(dim=shape)
    param = read_solver(LENET / "solver.prototxt")
    for name in ("net", "test_iter", "test_interval", "display", "snapshot"):
        param.ClearField(name)
    param.net_param.CopyFrom(net)
    Solver(param, backend).step(1)
    for call in [*backend.captured, *backend.others]:
        name = " + ".join([call.name, *(fused.name for fused in call.fused)])
        reads, writes = (", ".join(map(_named, tensors)) for tensors in (
            call.read_tensors(), call.written_tensors()))  # fmt: skip
        overlapped = "  || the next" if call.overlap else ""
        yield f"{call.layer or '-':6} {name:43} {reads} -> {writes}{overlapped}".rstrip()


def _named(tensor: Tensor) -> str:
    return tensor.name.replace(" ", "_")


if __name__ == "__main__":
    print("\n".join(lines()))
