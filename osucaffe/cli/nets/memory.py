"""Owns the report of what memory a net takes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...net import Net

logger = logging.getLogger("osucaffe")


def sums(net: Net) -> dict[str, int]:
    """Bytes in three sums: blobs with their gradients and scratch, parameters, and what learning
    keeps beside these."""
    backend, plan = net.backend, net.memory
    return {
        "blobs": plan.size + sum(map(backend.nbytes, plan.persistent)),
        "parameters": backend.nbytes(net.arena.data),
        "gradients of parameters": backend.nbytes(net.arena.diff),
    }


def memory_of(net: Net) -> dict[str, int]:
    """Bytes by what they are for. Scratch, such as workspaces of libraries, is part of the plan."""
    backend, plan = net.backend, net.memory
    scratch = [
        sum(map(backend.nbytes, call.scratch)) for program in net.programs for call in program
    ]
    parameters = sums(net)["parameters"]
    return {
        "blobs, their gradients and scratch, in one piece": plan.size,
        "the same if nothing were shared": plan.unshared,
        "of it: the most scratch (workspaces) of one call": max(scratch, default=0),
        "blobs that keep their memory": sum(map(backend.nbytes, plan.persistent)),
        "parameters": parameters,
        "gradients of the parameters": backend.nbytes(net.arena.diff),
        "each history buffer of a solver (SGD has one, Adam two)": parameters,
        **backend.memory_in_use(),
    }


def report_memory(net: Net) -> None:
    """Log `memory_of`."""
    logger.info("Memory:")
    for name, nbytes in memory_of(net).items():
        if nbytes:
            logger.info("%12.3f MB  %s", nbytes / 1e6, name)
