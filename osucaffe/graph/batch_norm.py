"""Owns the fusion of batch normalization with what stands around it: the copies that in-place
layers keep, Scale, the sum of a residual block, ReLU, and all of that backwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..backends.tensor import Call, Tensor

Programs = list[list[Call]]
"""Forward, and the forms of backward."""


def fuse_batch_norm(programs: Programs) -> Programs:
    """Fuse the calls around each batch normalization in forward and in each form of backward."""
    if not any(call.name == "batch_norm" for call in programs[0]):
        return programs
    programs = [skip_copies(programs[0]), *programs[1:]]
    programs = join_scale(programs)
    forward = join_relu(join_sum(programs))
    backward = [
        join_sum_backward(join_relu_backward(share_gradients(calls), forward))
        for calls in programs[1:]
    ]
    return [forward, *backward]


# -- who touches what ------------------------------------------------------------------------------


def _key(tensor: Tensor) -> int:
    return id(tensor.base or tensor)


def _reads(call: Call, tensor: Tensor) -> bool:
    return any(_key(each) == _key(tensor) for each in call.read_tensors())


def _writes(call: Call, tensor: Tensor) -> bool:
    return any(_key(each) == _key(tensor) for each in call.written_tensors())


class _Users:
    """The calls of some programs by the tensors that they touch."""

    def __init__(self, programs: Sequence[Sequence[Call]]) -> None:
        self._calls: dict[int, dict[int, Call]] = {}
        for call in (call for program in programs for call in program):
            for tensor in (*call.read_tensors(), *call.written_tensors()):
                self._calls.setdefault(_key(tensor), {})[id(call)] = call

    def of(self, tensor: Tensor) -> list[Call]:
        """Those that touch the tensor (or a view of it)."""
        return list(self._calls.get(_key(tensor), {}).values())

    def only(self, tensor: Tensor, *calls: Call) -> bool:
        """Whether nothing but these calls touches the tensor, and no user may look at it."""
        known = set(map(id, calls))
        return not tensor.kept and all(id(call) in known for call in self.of(tensor))


def _pairs(calls: Sequence[Call]) -> Iterator[tuple[Call | None, Call]]:
    """Each call with the one before it."""
    return zip([None, *calls], calls, strict=False)


def _without(calls: Sequence[Call], dropped: set[int]) -> list[Call]:
    return [call for call in calls if id(call) not in dropped]


def _is_plain_sum(call: Call, terms: int) -> bool:
    """Whether it adds so many terms, and no more."""
    factors = call.settings.get("coefficients") or []
    return (
        call.name == "sum"
        and len(call.reads["xs"]) == terms
        and all(factor == 1 for factor in factors)
        and "positive" not in call.reads
    )


def _is(call: Call | None, name: str, **arguments: Any) -> bool:
    """Whether it is a call of this primitive with these tensors (None: without) and settings."""
    if call is None or call.name != name:
        return False
    given = call.settings | call.reads | call.writes
    return all(given.get(argument) is value for argument, value in arguments.items())


def _give(side: dict[str, Any], call: Call, name: str, tensor: Tensor) -> None:
    """Let one side of a call (its reads or writes) have a tensor, which may have been None."""
    call.settings.pop(name, None)
    side[name] = tensor


# -- forward ---------------------------------------------------------------------------------------


def skip_copies(calls: list[Call]) -> list[Call]:
    """Let what is copied, because an in-place layer is about to overwrite it, be written to where
    the copy would be."""
    users = _Users([calls])
    place = {id(call): index for index, call in enumerate(calls)}
    dropped: set[int] = set()
    for call in calls:
        if call.name != "copy":
            continue
        x, copy = call.reads["x"], call.writes["y"]
        those = [each for each in users.of(x) if id(each) not in dropped]
        before = [each for each in those if place[id(each)] < place[id(call)]]
        after = [each for each in those if place[id(each)] > place[id(call)]]
        if not before or not after or copy.kept or x.base or copy.base:
            continue
        maker = before[-1]
        names = [name for name, tensor in maker.writes.items() if tensor is x]
        if names and maker.name != "host" and _writes(after[0], x) and not _reads(after[0], x):
            maker.writes[names[0]] = copy
            dropped.add(id(call))
    return _without(calls, dropped)


def join_scale(programs: Programs) -> Programs:
    """Let a batch normalization without scale and bias have those of the one without statistics
    (a Scale layer) behind it, in all programs."""
    users = _Users(programs)
    dropped: set[int] = set()
    for norm, scale in _pairs(programs[0]):
        if norm is None or not _is(norm, "batch_norm", scale=None, bias=None, addend=None):
            continue
        between = norm.writes["y"]
        if (
            "mean" not in norm.reads
            or norm.settings["relu"]
            or not _is(scale, "batch_norm", mean=None, rate=None, x=between)
        ):
            continue
        pairs = [_backward_pair(program, norm, scale) for program in programs[1:]]
        if None in pairs:
            continue
        known = [call for pair in pairs if pair for call in pair]
        if not users.only(between, norm, scale, *known):
            continue
        for pair in pairs:
            if pair:
                _join_backward(norm, *pair)
                dropped.update(map(id, pair[1:]))
        _take_statistics(scale, norm)
        scale.fuse(norm)
        dropped.add(id(norm))
    return [_without(calls, dropped) for calls in programs]


def _take_statistics(scale: Call, norm: Call) -> None:
    for name in "x", "mean", "rate":
        _give(scale.reads, scale, name, norm.reads[name])


def _backward_pair(calls: Sequence[Call], norm: Call, scale: Call) -> list[Call] | None:
    """The backward calls of a scale and of the normalization before it, neighbours, that can be
    one: both, the first alone, or none. None: they cannot be."""
    between = norm.writes["y"]
    found = [
        index
        for index, call in enumerate(calls)
        if call.name == "batch_norm_backward" and call.reads["x"] in (between, norm.reads["x"])
    ]
    if not found:
        return []
    first = calls[found[0]]
    if first.reads["x"] is not between:
        return None
    gradient = first.writes.get("dx")
    if gradient is None:
        return [first] if len(found) == 1 else None
    if len(found) != 2 or found[1] != found[0] + 1:
        return None
    second = calls[found[1]]
    users = _Users([calls])
    written = second.writes.get("dx")
    if written is None or second.reads["dys"] != [gradient]:
        return None
    if written is not gradient and not users.only(gradient, first, second):
        return None
    return [first, second]


def _join_backward(norm: Call, scale: Call, inner: Call | None = None) -> None:
    _take_statistics(scale, norm)
    if inner is not None:
        scale.settings["constant"] = inner.settings["constant"]
        scale.writes["dx"] = inner.writes["dx"]
        scale.fuse(inner)


def join_sum(programs: Programs) -> list[Call]:
    """Let a batch normalization add what the sum directly behind it adds; the new forward."""
    users = _Users(programs)
    dropped: set[int] = set()
    for norm, total in _pairs(programs[0]):
        if norm is None or not _is(norm, "batch_norm", addend=None) or norm.settings["relu"]:
            continue
        if not _is_plain_sum(total, 2):
            continue
        y, terms = norm.writes["y"], total.reads["xs"]
        others = [term for term in terms if term is not y]
        if len(others) == 1 and (total.writes["y"] is y or users.only(y, norm, total)):
            _give(norm.reads, norm, "addend", others[0])
            norm.writes["y"] = total.writes["y"]
            norm.fuse(total)
            dropped.add(id(total))
    return _without(programs[0], dropped)


def join_relu(calls: list[Call]) -> list[Call]:
    """Let a batch normalization apply the in-place ReLU that follows it."""
    dropped: set[int] = set()
    for norm, relu in _pairs(calls):
        if norm is not None and norm.name == "batch_norm" and not norm.settings["relu"]:
            y = norm.writes["y"]
            if _is(relu, "relu", x=y, y=y) and relu.settings["slope"] == 0:
                norm.settings["relu"] = True
                norm.fuse(relu)
                dropped.add(id(relu))
    return _without(calls, dropped)


# -- backward --------------------------------------------------------------------------------------


def share_gradients(calls: list[Call]) -> list[Call]:
    """Drop copies of gradients (the sum of a residual block makes them), where neither the copy
    nor the original changes while the copy is wanted: its readers read the original."""
    dropped: set[int] = set()
    for index, call in enumerate(calls):
        if not _is_plain_sum(call, 1):
            continue
        (x,), y = call.reads["xs"], call.writes["y"]
        if x.base or y.base or y.kept or x is y:
            continue
        readers = _readers_of_copy(calls[index + 1 :], x, y)
        if readers is not None:
            for reader in readers:
                _replace(reader, y, x)
            dropped.add(id(call))
    return _without(calls, dropped)


def _readers_of_copy(calls: Sequence[Call], x: Tensor, y: Tensor) -> list[Call] | None:
    """The calls that read y, a copy of x, before it is written anew; None: one comes too late, when
    x has changed."""
    readers, changed = [], False
    for call in calls:
        changed = changed or _writes(call, x)
        if _reads(call, y):
            if changed:
                return None
            readers.append(call)
        if _writes(call, y):
            break
    return readers


def _replace(call: Call, old: Tensor, new: Tensor) -> None:
    """Let a call read another tensor."""
    for name, value in call.reads.items():
        if isinstance(value, list):
            call.reads[name] = [new if each is old else each for each in value]
        elif value is old:
            call.reads[name] = new


def _wanted_later(calls: Sequence[Call], tensor: Tensor) -> bool:
    """Whether one of these calls reads the tensor before it is written anew."""
    first = next((call for call in calls if _reads(call, tensor) or _writes(call, tensor)), None)
    return first is not None and _reads(first, tensor)


def join_relu_backward(calls: list[Call], forward: Sequence[Call]) -> list[Call]:
    """Let the backward pass of a batch normalization do that of its ReLU, directly before it."""
    makers = {id(call.writes["y"]): call for call in forward if call.name == "batch_norm"}
    dropped: set[int] = set()
    for index, (relu, norm) in enumerate(_pairs(calls)):
        if relu is None or norm.name != "batch_norm_backward" or relu.name != "relu_backward":
            continue
        dy, maker = relu.writes["dx"], makers.get(id(relu.reads["x"]))
        if (
            maker is None
            or not maker.settings["relu"]
            or any(maker.reads.get(n) is not norm.reads.get(n) for n in ("x", "mean", "scale"))
            or relu.reads["dy"] is not dy
            or norm.reads["dys"] != [dy]
            or relu.settings["slope"] != 0
        ):
            continue
        norm.settings["relu"] = True
        if "addend" in maker.reads:
            _give(norm.reads, norm, "positive", relu.reads["x"])
        _keep_gradient(calls, index, norm, dy)
        norm.fuse(relu)
        dropped.add(id(relu))
    return _without(calls, dropped)


def join_sum_backward(calls: list[Call]) -> list[Call]:
    """Let the backward pass of a batch normalization add the two gradients that are added directly
    before it."""
    dropped: set[int] = set()
    for index, (total, norm) in enumerate(_pairs(calls)):
        if total is None or norm.name != "batch_norm_backward" or not _is_plain_sum(total, 2):
            continue
        dy = total.writes["y"]
        if norm.reads["dys"] != [dy]:
            continue
        norm.reads["dys"] = total.reads["xs"]
        _keep_gradient(calls, index, norm, dy)
        norm.fuse(total)
        dropped.add(id(total))
    return _without(calls, dropped)


def _keep_gradient(calls: Sequence[Call], index: int, norm: Call, dy: Tensor) -> None:
    """Let norm, the call at index, write dy, which is not made before it, if it is wanted later."""
    if norm.writes.get("dx") is not dy and _wanted_later(calls[index + 1 :], dy):
        _give(norm.writes, norm, "dy", dy)
