"""A collective algorithm of one's own, a star: rank 0 sends to all others, and gets from them.

osucaffe train --solver S --ranks 4 --algorithm star:star
"""

from osucaffe.comm.algorithms import Node, Operation, Problem, Schedule, broadcast, mirror


def send_to_all(problem: Problem) -> Schedule:
    """A broadcast from rank 0."""
    rank, size = problem.rank, problem.size
    node = Node(0 if rank else None, () if rank else tuple(range(1, size)))
    return broadcast(node, problem.elements, problem.elements)


def reduce_to_one(problem: Problem) -> Schedule:
    """The same backwards, every message added where it arrives."""
    return mirror(send_to_all(problem))


def sum_on_all(problem: Problem) -> Schedule:
    """One after the other."""
    return reduce_to_one(problem) + send_to_all(problem)


star = {
    Operation.BROADCAST: send_to_all,
    Operation.REDUCE: reduce_to_one,
    Operation.ALL_REDUCE: sum_on_all,
}
