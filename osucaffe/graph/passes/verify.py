"""Owns the verifier of programs: after each pass, what runs must still compute what was recorded.

A compiler checks its intermediate code after each pass (LLVM's verifier). Here the recorded
programs are the meaning: for each read of each call, which call made the value. A pass may let a
call do another's work (`Call.fuse`), let two share it (`Call.trade`), drop copies and what nobody
reads, move what parameters alone decide to the `Constants`, and change where values lie. It may not
let anybody read another value: one that nobody wrote, an older or a newer one, or one whose memory
has been used again meanwhile. That a fused call computes the right formula is not seen here; random
nets beside a reference are for that (tests/differential).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from ...backends.tensor import Call, Tensor
from ..assembly import Assembly
from .constants import Constants
from .editing import Programs, is_plain_sum, key, operands, timelines

SWITCH = "OSUCAFFE_VERIFY"
"""The environment variable that has every net verified when it is built: "1"."""

Value = Call | Tensor
"""The call that made it, or the tensor that held it before the program began."""


class VerificationError(RuntimeError):
    """A pass made a program that computes something else: a fault of osucaffe, not of the net."""


def is_enabled() -> bool:
    """Whether nets are to be verified."""
    return os.environ.get(SWITCH, "") not in ("", "0")


class Flow:
    """Which values the calls of a timeline read, and who wrote each tensor last.

    reads: for each call (by id) and each of its tensor arguments, the values that it gets.
    written: who wrote a tensor (by key) last, and that tensor.
    resolved: what the verifier has found of calls (by id).
    """

    def __init__(self, calls: Iterable[Call]) -> None:
        self.reads: dict[int, dict[str, list[Value]]] = {}
        self.written: dict[int, tuple[Call, Tensor]] = {}
        self.resolved: dict[int, frozenset[int]] = {}
        host: Call | None = None
        for call in calls:
            self.reads[id(call)] = reads = {}
            for name, value in call.reads.items():
                reads[name] = [self.value(tensor) for tensor in _tensors(value)]
            if activation := call.settings.get("activation"):  # of what it computes, and slopes
                mine = set(map(key, call.written_tensors()))
                others = [each for each in activation.read_tensors() if key(each) not in mine]
                reads["activation"] = list(map(self.value, others))
            for name in call.accumulates:
                reads[f"{name} so far"] = [self.value(each) for each in _tensors(call.writes[name])]
            if call.name == "host" and not call.settings.get("feed"):
                # Functions on the host may have effects of their own: they stay in order.
                reads["the host"] = [host] if host is not None else []
                host = call
                # They change what there is: a Python layer adds to gradients itself.
                changed = [each for each in call.written_tensors() if key(each) in self.written]
                reads["changed"] = list(map(self.value, changed))
            for tensor in call.written_tensors():
                self.written[key(tensor)] = call, tensor.owner

    def value(self, tensor: Tensor) -> Value:
        """Who wrote it last, or itself."""
        return self.written[key(tensor)][0] if key(tensor) in self.written else tensor.owner


class Verifier:
    """Checks the programs of one net, as they are now, against those that its layers recorded: as
    they are when it is made. backwards: for each form of backward, whether it accumulates. size_of
    gives a tensor's bytes."""

    def __init__(
        self,
        programs: Programs,
        parts: Assembly,
        backwards: Sequence[bool],
        constants: Constants | None,
        size_of: Callable[[Tensor], int],
    ) -> None:
        self._programs, self._backwards = programs, backwards
        self._constants, self._size_of = constants, size_of
        self._recorded = [Flow(calls) for calls in timelines(programs)]
        self._calls = {id(call): call for calls in programs for call in calls}
        self._forward = {id(call) for call in programs[0]}
        layers = [node.layer for node in parts.nodes]
        self._layers = len(layers)
        self._data: set[int] = set()
        self._users: dict[int, set[int]] = {}
        """By the key of a parameter's gradient, the positions of the layers that have it."""
        for position, layer in enumerate(layers):
            for blob in layer.parameters:
                self._data.add(key(blob.data))
                self._users.setdefault(key(blob.diff), set()).add(position)
        self._initial = {key(tensor) for layer in layers for tensor, _ in layer.initial}
        recorded = self._calls.values()
        self._copies = {id(c) for c in recorded if c.name == "copy" or is_plain_sum(c, 1)}
        self.checked = 0
        """How many reads were followed to who made them."""

    def check(self, name: str) -> None:
        """VerificationError where a program, as pass `name` left it, computes something else."""
        self._pass, programs = name, self._programs
        for each in self._recorded:
            each.resolved.clear()
        constants = self._constant_calls()
        self._group(constants)
        for number, calls in enumerate(timelines(programs)):
            self._check_order(programs[0])
            self._check_order(calls[len(programs[0]) :], backward=True)
            self._check_views(calls)
            flow = Flow([*constants, *calls])
            recorded = self._recorded[number]
            accumulating = bool(self._backwards) and self._backwards[number]
            self._check_written([*constants, *calls], flow, accumulating=accumulating)
            self._check_values([*constants, *calls], flow, recorded)
            self._check_results(calls, flow, recorded)
            self._check_gradients(calls[len(programs[0]) :], accumulating=accumulating)
            if any(call.overlap for call in calls):
                check_schedule(calls, None, self._fail)

    def check_memory(self) -> None:
        """VerificationError where tensors that are needed at the same time share memory."""
        self._pass = "placement"
        for calls in timelines(self._programs):
            check_schedule(calls, self._size_of, self._fail)

    # -- what became of the recorded calls ---------------------------------------------------------

    def _constant_calls(self) -> list[Call]:
        """The calls that run once for all, in their order: they may read parameters and each
        other's results."""
        constants = self._constants
        self._constant: set[int] = set()
        if constants is None:
            return []
        calls = constants.calls
        made: set[int] = set()
        for call in calls:
            for tensor in call.read_tensors():
                if not constants.is_parameter(tensor) and key(tensor) not in made:
                    self._fail(call, f"runs once for all, and reads {tensor}, which may change")
            made.update(map(key, call.written_tensors()))
        self._constant |= made | {key(t) for call in calls for t in call.read_tensors()}
        return calls

    def _group(self, constants: Sequence[Call]) -> None:
        """Calls that do each other's work are one: find for each who it belongs to now."""
        self._parent: dict[int, int] = {}
        self._alive: set[int] = set()
        self._several: set[int] = set()
        programmed = [call for calls in self._programs for call in calls]
        now = [*constants, *programmed]
        for call in now:
            for other in (*call.fused, *call.trades):
                one, two = self._root(id(call)), self._root(id(other))
                self._parent[one] = two
        for call in now:
            if id(call) in self._calls:
                self._alive.add(self._root(id(call)))
            if call.fused or call.trades:
                self._several.add(self._root(id(call)))
        for call in programmed:
            if id(call) not in self._calls:
                self._fail(call, "was recorded by no layer")

    def _root(self, identity: int) -> int:
        while (parent := self._parent.get(identity, identity)) != identity:
            identity = parent
        return identity

    def _resolve(self, value: Value, flow: Flow) -> frozenset[int]:
        """Whose results a value consists of, by identity of groups and of tensors: copies that went
        stand for what they copied, and what parameters alone decide for these."""
        if isinstance(value, Tensor):
            return frozenset((id(value),))
        if id(value) not in flow.resolved:
            flow.resolved[id(value)] = self._resolve_call(value, flow)
        return flow.resolved[id(value)]

    def _resolve_call(self, call: Call, flow: Flow) -> frozenset[int]:
        recorded = id(call) in self._calls
        if recorded and (group := self._root(id(call))) in self._alive:
            return frozenset((group,))
        values = [each for given in flow.reads[id(call)].values() for each in given]
        if recorded and id(call) not in self._copies and not self._is_constant(values):
            return frozenset((id(call),))
        return frozenset(one for each in values for one in self._resolve(each, flow))

    def _is_constant(self, values: Sequence[Value]) -> bool:
        """Whether these are parameters, in a net that keeps constants."""
        return self._constants is not None and all(
            isinstance(each, Tensor) and key(each) in self._data for each in values
        )

    # -- the checks --------------------------------------------------------------------------------

    def _check_order(self, calls: Sequence[Call], *, backward: bool = False) -> None:
        """Calls run in the order of their layers also where they run layer by layer."""
        last = None
        for call in calls:
            position = call.position if call.position >= 0 else self._layers
            position = -position if backward else position
            if last is not None and position < last:
                self._fail(call, "comes behind calls of layers that run later")
            last = position

    def _check_views(self, calls: Iterable[Call]) -> None:
        for call in calls:
            for tensor in operands(call):
                base = tensor.base
                if base is not None and (base.count != tensor.count or base.layout is not None):
                    self._fail(call, f"views {base} as {tensor}, but it does not lie row-major")

    def _check_written(self, calls: Sequence[Call], flow: Flow, *, accumulating: bool) -> None:
        """What is read was written, or is there before the program begins."""
        for call in calls:
            for values in flow.reads[id(call)].values():
                for value in values:
                    self.checked += 1
                    if isinstance(value, Tensor) and not self._is_given(value, accumulating):
                        self._fail(call, f"reads {value}, which nothing has written")

    def _is_given(self, tensor: Tensor, accumulating: bool) -> bool:
        """Whether a tensor holds something before the program begins."""
        return (
            tensor.persistent
            or (tensor.array is not None and key(tensor) not in self._users)
            or key(tensor) in self._data
            or key(tensor) in self._initial
            or (accumulating and key(tensor) in self._users)
        )

    def _check_values(self, calls: Sequence[Call], flow: Flow, recorded: Flow) -> None:
        """Each group of calls reads the values that its calls read when they were recorded."""
        expected: dict[int, set[int]] = {}
        for identity, reads in recorded.reads.items():
            known = expected.setdefault(self._root(identity), set())
            for values in reads.values():
                known.update(*(self._resolve(each, recorded) for each in values))
        actual: dict[int, set[int]] = {}
        for call in calls:
            if id(call) not in self._calls:
                continue  # new: who reads what it makes is asked for what it reads
            group = self._root(id(call))
            known = actual.setdefault(group, set())
            for name, values in flow.reads[id(call)].items():
                given = [self._resolve(each, flow) for each in values]
                known.update(*given)
                wrong = set().union(*given) - expected[group] - {group}
                if group not in self._several:
                    then = recorded.reads[id(call)].get(name, [])
                    if given != [self._resolve(each, recorded) for each in then]:
                        wrong = wrong or set().union(*given)
                if wrong:
                    self._fail(call, f"reads as {name} what {self._who(wrong)} made")
        backward = {self._root(id(each)) for each in calls if id(each) not in self._forward}
        for call in calls:
            if id(call) not in self._calls:
                continue
            group = self._root(id(call))
            missing = expected[group] - actual[group] - {group}
            if group in self._several and id(call) not in self._forward:
                # What forward noted of a value, or computed from it, may stand for the value.
                missing &= backward
            if missing:
                self._fail(call, f"does not read what {self._who(missing)} made")

    def _check_results(self, calls: Iterable[Call], flow: Flow, recorded: Flow) -> None:
        """What outlives the program holds what it held: parameters, gradients, outputs. What
        constants are made of stays as it is."""
        for identity, (call, tensor) in recorded.written.items():
            if tensor.persistent or identity in self._users or identity in self._data:
                now = self._resolve(flow.value(tensor), flow)
                if now != self._resolve(call, recorded):
                    self._fail(call, f"no longer makes {tensor}: {self._who(now)} does")
        for call in calls:
            for tensor in call.written_tensors():
                if key(tensor) in self._constant:
                    self._fail(call, f"writes {tensor}, on which constants depend")

    def _check_gradients(self, backward: Sequence[Call], *, accumulating: bool) -> None:
        """A parameter's gradient is begun once, then added to; by layers that use it alone, so that
        it is complete when the first of these has run backward."""
        begun: set[int] = set()
        for call in backward:
            for name, value in call.writes.items():
                for tensor in _tensors(value):
                    if key(tensor) not in self._users:
                        continue
                    adds = name in call.accumulates or call.name == "host"
                    if adds != (accumulating or key(tensor) in begun):
                        self._fail(call, f"{'adds to' if adds else 'overwrites'} {tensor}")
                    if call.position not in self._users[key(tensor)] and not call.fused:
                        self._fail(call, f"writes {tensor}, which is another layer's")
                    begun.add(key(tensor))

    def _who(self, identities: Iterable[int]) -> str:
        """Names for groups and tensors."""
        names = []
        for identity in identities:
            call = self._calls.get(identity)
            names.append(f"{call.name} of {call.layer}" if call else "something else")
        return ", ".join(sorted(names)) or "nobody"

    def _fail(self, call: Call, what: str) -> None:
        raise VerificationError(
            f'pass "{self._pass}": {call.name} of {call.layer or "no layer"} {what}'
        )


def check_schedule(
    calls: Sequence[Call],
    size_of: Callable[[Tensor], int] | None,
    fail: Callable[[Call, str], None],
) -> None:
    """No call reads or overwrites memory that another, which may run beside it, still works on;
    and nothing is read whose memory something else has got since it was written.

    size_of gives a tensor's bytes; None: they have no memory yet, and share none. fail: called
    with the call that does, and what it does.
    """
    sharing = _sharing(calls, size_of) if size_of else {}
    touched = [_Touched(call, sharing) for call in calls]
    lost: dict[int, Call] = {}
    """Tensors whose memory holds something else now, and the call that wrote that."""
    for index, (call, mine) in enumerate(zip(calls, touched, strict=True)):
        if call.settings.get("feed"):
            continue  # it runs before all others, and places what it brings
        for read, tensor in mine.reads.items():
            if read in lost:
                other = lost[read]
                fail(call, f"reads {tensor}, over which {other.name} of {other.layer} has written")
        for changed, tensor in mine.changes.items():
            for shared in sharing.get(changed, ()):
                if shared in mine.reads or shared in mine.changes:
                    fail(call, f"writes {tensor} over another of its operands")
                lost[shared] = call
        for written in mine.writes:
            lost.pop(written, None)
        for later, others in zip(
            calls[index + 1 :][: call.overlap], touched[index + 1 :], strict=False
        ):
            if not later.overlap and mine.disturbs(others):
                fail(later, f"does not wait for {call.name} of {call.layer}, which runs beside it")


class _Touched:
    """The tensors that a call reads, writes and changes (its scratch memory, too), by key; memory:
    what it changes, and all that shares memory with that."""

    def __init__(self, call: Call, sharing: dict[int, list[int]]) -> None:
        added = [each for name in call.accumulates for each in _tensors(call.writes[name])]
        self.reads = {key(tensor): tensor.owner for tensor in (*call.read_tensors(), *added)}
        self.writes = {key(tensor): tensor.owner for tensor in call.written_tensors()}
        self.changes = self.writes | {key(tensor): tensor for tensor in call.scratch}
        self.memory = set(self.changes).union(*(sharing.get(each, ()) for each in self.changes))

    def disturbs(self, later: _Touched) -> bool:
        """Whether two calls, of which one is to come behind the other, may not run together."""
        return (
            not self.memory.isdisjoint(later.changes)
            or not self.memory.isdisjoint(later.reads)
            or not later.memory.isdisjoint(self.reads)
        )


def _sharing(calls: Iterable[Call], size_of: Callable[[Tensor], int]) -> dict[int, list[int]]:
    """For each tensor that has memory, by key, the others that share some of it."""
    tensors = {
        key(tensor): tensor.owner
        for call in calls
        if not call.settings.get("feed")
        for tensor in (*operands(call), *call.scratch)
    }
    ranges = [
        (tensor.address, tensor.address + size, each)
        for each, tensor in tensors.items()
        if tensor.array is not None and (size := size_of(tensor))
    ]
    sharing: dict[int, list[int]] = {}
    alive: list[tuple[int, int]] = []
    for begin, end, each in sorted(ranges):
        alive = [(stop, other) for stop, other in alive if stop > begin]
        for _, other in alive:
            sharing.setdefault(each, []).append(other)
            sharing.setdefault(other, []).append(each)
        alive.append((end, each))
    return sharing


def _tensors(value: object) -> Iterator[Tensor]:
    """The tensors of one argument of a call."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
