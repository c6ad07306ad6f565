"""The random settings of solvers and of the small nets that they train: their prototxt, data.

Of a case's settings, those with a dot tell of the net and of the run, the others are the solver's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..search import Case

DEFAULTS: Case = {
    "net.width": 3,
    "net.outputs": 2,
    "net.depth": 1,
    "net.activation": "",
    "net.bias": True,
    "net.shared": False,
    "net.head": False,
    "net.loss_weight": 1.0,
    "net.multipliers": (),
    "net.batch": 4,
    "net.test_batch": 3,
    "net.rows": (7,),
    "net.seed": 1,
    "run.iterations": 6,
    "run.stop": 3,
    "run.resume": "new",
    "run.dtype": "float32",
    "run.onednn": True,
    "run.inspectable": False,
    "run.loss_scale": None,
    "type": "SGD",
    "lr_policy": "fixed",
    "base_lr": 0.1,
    "max_iter": 12,
    "random_seed": 7,
    "snapshot_after_train": False,
}


def draw(random: np.random.Generator) -> Case:
    """A case that no solver may refuse."""

    def one(*values: Any) -> Any:
        return values[random.integers(len(values))]

    iterations = int(random.integers(6, 13))
    case: Case = {
        "run.iterations": iterations,
        "run.stop": int(random.integers(1, iterations)),
        "run.resume": one("new", "other", "same"),
        "run.dtype": one("float32", "float64"),
        "run.onednn": one(True, False),
        "run.inspectable": one(False, False, True),
        "net.width": int(random.integers(1, 8)),
        "net.outputs": int(random.integers(1, 5)),
        "net.depth": int(random.integers(1, 5)),
        "net.activation": one("", "TanH", "Sigmoid"),
        "net.bias": one(True, True, False),
        "net.shared": one(True, False),
        "net.head": one(True, False),
        "net.loss_weight": one(1.0, 0.5, 2.0),
        "net.batch": int(random.integers(1, 8)),
        "net.test_batch": int(random.integers(1, 6)),
        "net.rows": tuple(random.integers(1, 9, random.integers(1, 4)).tolist()),
        "net.seed": int(random.integers(1000)),
        "net.multipliers": tuple(
            (one(1.0, 1.0, 2.0, 0.5, 0.0), one(1.0, 1.0, 2.0, 0.0)) for _ in range(10)
        ),
        "max_iter": iterations + int(random.integers(0, 10)),
        "weight_decay": one(0.0, 0.01, 0.2),
        "regularization_type": one("L1", "L2"),
        "clip_gradients": one(-1.0, 0.05, 0.5, 5.0),
        "iter_size": one(1, 1, 2, 3),
        "display": one(0, 1, 2, 3),
        "average_loss": one(1, 2, 4),
        "debug_info": one(False, False, False, True),
        "snapshot_format": one("BINARYPROTO", "HDF5"),
        "snapshot_diff": one(True, False),
        **draw_rule(one),
        **draw_policy(random, one, iterations),
    }
    if case["type"] != "LAMB" and random.random() < 0.3:  # NVIDIA Caffe's and Intel Caffe's
        case |= one(
            {"larc": True, "larc_policy": one("scale", "clip"), "larc_eta": one(0.001, 0.1)},
            {"local_lr_auto": True, "local_gw_ratio": one(0.001, 0.1), "regularization_type": "L2"},
        )
    if random.random() < 0.3:
        case["run.loss_scale"] = one("dynamic", "1024", "3")
    if random.random() < 0.5:
        case |= {
            "test_interval": int(random.integers(1, 5)),
            "test_iter": int(random.integers(1, 4)),
            "test_initialization": one(True, False),
            "test_compute_loss": True,
        }
    return case


def draw_rule(one: Callable[..., Any]) -> Case:
    kind = one("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam", "LAMB")
    more: Case = {
        "SGD": {"momentum": one(0.0, 0.5, 0.9)},
        "Nesterov": {"momentum": one(0.0, 0.5, 0.9)},
        "AdaGrad": {"delta": one(1e-8, 1e-3)},
        "RMSProp": {"rms_decay": one(0.0, 0.5, 0.98), "delta": one(1e-8, 1e-3)},
        "AdaDelta": {"momentum": one(0.0, 0.5, 0.95), "delta": one(1e-6, 1e-2)},
        "Adam": {
            "momentum": one(0.0, 0.9),
            "momentum2": one(0.5, 0.999),
            "delta": one(1e-8, 1e-3),
        },
        "LAMB": {
            "momentum": one(0.0, 0.9),
            "momentum2": one(0.5, 0.999),
            "delta": one(1e-6, 1e-3),
            "regularization_type": "L2",
        },
    }[kind]
    rate = {"SGD": 0.1, "Nesterov": 0.05, "AdaDelta": 1.0}.get(kind, 0.02)
    return {"type": kind, "base_lr": rate * one(0.3, 1.0, 1.7), **more}


def draw_policy(random: np.random.Generator, one: Callable[..., Any], iterations: int) -> Case:
    def places(most: int) -> tuple[int, ...]:
        return tuple(sorted(random.integers(0, iterations, random.integers(1, most)).tolist()))

    name = one(
        *("fixed", "step", "exp", "inv", "multistep", "poly", "sigmoid", "plateau", "multifixed")
    )
    stages = places(4)
    case: Case = {"lr_policy": name} | {
        "fixed": {},
        "step": {"gamma": one(0.5, 1.2), "stepsize": int(random.integers(1, 5))},
        "exp": {"gamma": one(0.8, 1.1)},
        "inv": {"gamma": one(0.1, 1.0), "power": one(0.75, 2.0, -0.5)},
        "multistep": {"gamma": one(0.5, 0.9), "stepvalue": places(5)},
        "poly": {"power": one(0.5, 1.0, 2.0)},
        "sigmoid": {"gamma": one(-0.7, 0.7), "stepsize": int(random.integers(1, 8))},
        "plateau": {
            "gamma": one(0.5, 0.9),
            "plateau_winsize": tuple(random.integers(1, 4, random.integers(1, 5)).tolist()),
        },
        "multifixed": {
            "stageiter": stages,
            "stagelr": tuple(one(0.01, 0.02, 0.05) for _ in stages),
        },
    }[name]
    beginning = one("", "", "", "warmup", "rampup")
    if beginning == "warmup":
        case |= {"warmup_iter": int(random.integers(1, 6)), "warmup_start_lr": one(0.0, 0.01)}
    if beginning == "rampup":
        case |= {"rampup_interval": int(random.integers(1, 6)), "rampup_lr": one(0.0, 0.01)}
    if name != "multifixed":
        case["min_lr"] = one(0.0, 0.005)
    return case


@dataclass(frozen=True)
class Dense:
    """An InnerProduct layer: its parameters by place, their multipliers, what it reads and gives.

    loss: the weight of an EuclideanLoss behind it, if it has one.
    """

    name: str
    parameters: tuple[int, ...]
    bottom: str
    top: str
    outputs: int
    activation: str = ""
    loss: float = 0.0


def layers(case: Case) -> list[Dense]:
    """The net as InnerProducts; parameters are numbered in the order in which Caffe has them."""
    found, count = list[Dense](), 0
    each = 2 if case["net.bias"] else 1

    def new() -> tuple[int, ...]:
        nonlocal count
        count += each
        return tuple(range(count - each, count))

    bottom, shared = "x", None
    for place in range(case["net.depth"] - 1):
        if case["net.shared"] and shared:
            parameters = shared
        else:
            parameters = shared = new()
        found.append(
            Dense(
                f"hidden{place}", parameters, bottom, f"h{place}", case["net.width"],
                activation=case["net.activation"],
            )
        )  # fmt: skip
        bottom = f"h{place}"
    outputs, weight = case["net.outputs"], case["net.loss_weight"]
    found.append(Dense("last", new(), bottom, "last", outputs, loss=weight))
    if case["net.head"]:  # reads what the second layer reads, so that this is split
        second = "h0" if case["net.depth"] > 1 else "x"
        found.append(Dense("head", new(), second, "head", outputs, loss=0.5))
    return found


def multipliers(case: Case, parameter: int) -> tuple[float, float]:
    """lr_mult and decay_mult of a parameter."""
    given = case["net.multipliers"]
    return given[parameter] if parameter < len(given) else (1.0, 1.0)


def net_text(case: Case, source: str) -> str:
    """The net as prototxt."""
    text = 'name: "dense"\n'
    for phase, batch in ("TRAIN", case["net.batch"]), ("TEST", case["net.test_batch"]):
        text += (
            f'layer {{ name: "data" type: "HDF5Data" top: "x" top: "y" include {{ phase: {phase} }}'
            f' hdf5_data_param {{ source: "{source}" batch_size: {batch} }} }}\n'
        )
    for layer in layers(case):
        params = ""
        for place, number in enumerate(layer.parameters):
            rate, decay = multipliers(case, number)
            name = f'name: "shared{place}" ' if layer.name.startswith("hidden") else ""
            name = name if case["net.shared"] else ""
            params += f"  param {{ {name}lr_mult: {rate} decay_mult: {decay} }}\n"
        std = 0.8 / math.sqrt(case["net.width"])
        filler = (
            f'weight_filler {{ type: "gaussian" std: {std:.2g} }} bias_filler {{ type: "uniform" }}'
        )
        text += (
            f'layer {{ name: "{layer.name}" type: "InnerProduct" bottom: "{layer.bottom}" '
            f'top: "{layer.top}"\n{params}'
            f"  inner_product_param {{ num_output: {layer.outputs} "
            f"bias_term: {str(case['net.bias']).lower()} {filler} }} }}\n"
        )
        if layer.activation:
            text += (
                f'layer {{ name: "{layer.name}/act" type: "{layer.activation}" '
                f'bottom: "{layer.top}" top: "{layer.top}" }}\n'
            )
        if layer.loss:
            text += (
                f'layer {{ name: "{layer.name}/loss" type: "EuclideanLoss" bottom: "{layer.top}" '
                f'bottom: "y" top: "{layer.name}_loss" loss_weight: {layer.loss} }}\n'
            )
    return text


def solver_text(case: Case) -> str:
    """The solver's fields as prototxt."""
    text = ""
    for name, value in case.items():
        if "." in name:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, bool):
                each = str(each).lower()
            elif isinstance(each, str) and name != "snapshot_format":
                each = f'"{each}"'
            text += f"{name}: {each}\n"
    return text


def show(case: Case) -> str:
    """Solver and net as prototxt."""
    run = {name: value for name, value in case.items() if name.startswith("run.")}
    return f"# {run}\n{solver_text(case)}\n{net_text(case, 'list')}"


def write_data(case: Case, folder: Path) -> None:
    """Write the case's HDF5 files, and the list of them."""
    names = []
    random = np.random.default_rng(case["net.seed"])
    for number, rows in enumerate(case["net.rows"]):
        names.append(f"{folder}/{number}.h5")
        with h5py.File(names[-1], "w") as file:
            file["x"] = random.standard_normal((rows, case["net.width"])).astype(np.float32)
            file["y"] = random.standard_normal((rows, case["net.outputs"])).astype(np.float32)
    (folder / "list").write_text("\n".join(names))


def read_data(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """All rows that `write_data` has written."""
    files = [h5py.File(name) for name in (folder / "list").read_text().split()]
    x, y = (np.concatenate([file[name][:] for file in files]).astype(np.float64) for name in "xy")
    return x, y
