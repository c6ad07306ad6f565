"""The verifier of programs: after each pass, what runs must still compute what was recorded.

A compiler checks its intermediate code after each pass (LLVM's verifier). Here the recorded
programs are the meaning: for each read of each call, which call made the value. A pass may let a
call do another's work (`fuse`), let two share it (`trade`), drop copies and what nobody
reads, copy parts, move what parameters alone decide to the `Constants`, and change where values
are. It may not let anybody read another value: one that nobody wrote, an older or a newer one, or
one whose memory has been used again meanwhile. That a fused call computes the right formula, or
that a part is the right one, is not seen here; random nets, compared with a reference, are for that
(tests/differential).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import is_
from typing import Any

from ...backends import primitives as ops
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Tensor, tensors_in
from ..assembly import Assembly
from .constants import Constants
from .editing import Programs, is_plain_sum, operands, owners

SWITCH = "OSUCAFFE_VERIFY"
"""The environment variable that has every net verified when it is built: "1"."""

Value = Primitive | Tensor
"""The call that made it, or the tensor that held it before the program began."""


class VerificationError(RuntimeError):
    """A pass made a program that computes something else: a fault of osucaffe, not of the net."""


def _is_move(call: Primitive) -> bool:
    """Whether passes may insert it: what it makes is what others have made."""
    match call:
        case ops.MaxPooling():
            return {*call.kernel} == {1}
        case ops.Concat() | ops.Split():
            return True
    return False


def is_enabled() -> bool:
    """Whether nets are to be verified."""
    return os.environ.get(SWITCH, "") not in ("", "0")


def _note(values: Iterable[Any], found: list[Any]) -> None:
    """Add values, what lists of them hold, and what tensors say of their memory."""
    for value in values:
        found.append(value)
        if isinstance(value, Tensor):
            found += (value.persistent, value.array, value.layout)
        elif isinstance(value, list | tuple):
            _note(value, found)
        elif isinstance(value, ops.Elementwise):  # an activation
            _note(vars(value).values(), found)


class Flow:
    """Which values calls that run one after the other read, and who wrote each tensor last.

    reads: for each call and each of its tensor arguments, the values that it gets. written: which
    call wrote a tensor last. resolved: what the verifier has found of calls.
    """

    def __init__(self, calls: Iterable[Primitive]) -> None:
        self.reads: dict[Primitive, dict[str, list[Value]]] = {}
        self.written: dict[Tensor, Primitive] = {}
        self.resolved: dict[Primitive, frozenset[Value]] = {}
        self._host: Primitive | None = None
        self.add(calls)

    def add(self, calls: Iterable[Primitive]) -> None:
        """Let these calls run after the others."""
        for call in calls:
            arguments: dict[str, Any] = {name: getattr(call, name) for name in call.read_fields}
            activation = getattr(call, "activation", None)
            if isinstance(activation, ops.Elementwise):  # of what it computes, and slopes
                written = owners(call.written_tensors())
                others = [t for t in activation.read_tensors() if t.owner not in written]
                arguments["activation"] = others
            arguments |= {f"{name} so far": getattr(call, name) for name in call.accumulates}
            self.reads[call] = values = {
                name: [self.value(part) for each in tensors_in([argument]) for part in each.owners]
                for name, argument in arguments.items()
            }
            if isinstance(call, ops.Host) and not call.feed:
                # Functions on the host may have effects of their own: they stay in order.
                values["the host"] = [self._host] if self._host is not None else []
                self._host = call
                # They change what there is: a Python layer adds to gradients itself.
                changed = [t for t in call.written_tensors() if t.owner in self.written]
                values["changed"] = list(map(self.value, changed))
            self.written |= dict.fromkeys(owners(call.written_tensors()), call)

    def value(self, tensor: Tensor) -> Value:
        """Who wrote it last, or itself."""
        return self.written.get(tensor.owner, tensor.owner)


class Verifier:
    """Checks the programs of one net, as they are now, against those that its layers recorded: as
    they are when it is made. accumulate: whether backward adds to all parameters' gradients.
    size_of gives a tensor's bytes."""

    def __init__(
        self,
        programs: Programs,
        parts: Assembly,
        accumulate: bool,
        constants: Constants | None,
        size_of: Callable[[Tensor], int],
    ) -> None:
        self._programs, self._accumulate = programs, accumulate
        self._constants, self._size_of = constants, size_of
        self._recorded = Flow(())
        self._calls: set[Primitive] = set()
        self._copies: set[Primitive] = set()
        self._forward = set(programs[0])
        self.record(chain(*programs))
        layers = [node.layer for node in parts.nodes]
        self._layers = len(layers)
        self._data: set[Tensor] = set()
        self._users: dict[Tensor, set[int]] = {}
        """By a parameter's gradient, the positions of the layers that have it."""
        for position, layer in enumerate(layers):
            for blob in layer.parameters:
                self._data.add(blob.data.owner)
                self._users.setdefault(blob.diff.owner, set()).add(position)
        self._initial = owners(tensor for layer in layers for tensor, _ in layer.initial)
        self._state: list[Any] = []
        """What was checked last: it has so many reads."""
        self._reads = self.checked = 0
        """How many reads were followed to who made them."""

    def record(self, calls: Iterable[Primitive]) -> None:
        """Let calls be recorded after those that were before passes changed these: they may also
        read what did not exist then."""
        calls = list(calls)
        for call in self._programs[0] if self._calls else ():
            for tensor in owners(call.written_tensors()):
                self._recorded.written.setdefault(tensor, call)
        self._recorded.add(calls)
        self._calls.update(calls)
        self._copies.update(c for c in calls if isinstance(c, ops.Copy) or is_plain_sum(c, 1))

    def check(self, name: str) -> None:
        """VerificationError where a program, as pass `name` left it, computes something else."""
        state: list[Any] = []
        for calls in (*self._programs, self._constants.calls if self._constants else []):
            state.append(None)
            for call in calls:
                _note((call, *vars(call).values()), state)
        if len(state) != len(self._state) or not all(map(is_, state, self._state)):
            self._state, self._pass, self._reads = state, name, 0
            self._check_changed()
        self.checked += self._reads

    def _check_changed(self) -> None:
        """Check the programs, which are not those that were checked last."""
        self._recorded.resolved.clear()
        constants = self._constant_calls()
        self._group(constants)
        forward, backward = self._programs
        calls = [*forward, *backward]
        self._check_order(forward)
        self._check_order(backward, backward=True)
        self._check_views(calls)
        flow = Flow([*constants, *calls])
        self._check_written(flow)
        self._check_values([*constants, *calls], flow)
        self._check_results(calls, flow)
        self._check_gradients(backward)
        if any(call.overlap for call in calls):
            check_schedule(calls, None, self._fail)

    def check_memory(self) -> None:
        """VerificationError where tensors that are needed at the same time share memory."""
        self._pass = "placement"
        check_schedule([*chain(*self._programs)], self._size_of, self._fail)

    # -- what became of the recorded calls ---------------------------------------------------------

    def _constant_calls(self) -> list[Primitive]:
        """The calls that run once for all, in their order: they may read parameters and each
        other's results."""
        constants = self._constants
        self._constant: set[Tensor] = set()
        if constants is None:
            return []
        calls, made = constants.calls, set[Tensor]()
        for call in calls:
            for tensor in call.read_tensors():
                if not constants.is_parameter(tensor) and tensor.owner not in made:
                    self._fail(call, f"runs once for all, and reads {tensor}, which may change")
            made |= owners(call.written_tensors())
            self._constant |= owners(operands(call))
        return calls

    def _group(self, constants: Sequence[Primitive]) -> None:
        """Calls that do each other's work are one: find for each who it belongs to now."""
        self._parent: dict[Primitive, Primitive] = {}
        programmed = [*chain(*self._programs)]
        for known in self._calls, self._forward:  # what has taken the place of such a call is one
            known |= {call for call in programmed if not known.isdisjoint(call.fused)}
        now = [*constants, *programmed]
        for call in now:
            for other in (*call.fused, *call.shares_work_with):
                group = self._root(call)
                self._parent[group] = self._root(other)
        self._alive = {self._root(call) for call in now if call in self._calls}
        self._several = {self._root(call) for call in now if call.fused or call.shares_work_with}
        for call in programmed:
            if call not in self._calls and not _is_move(call):
                self._fail(call, "was recorded by no layer")

    def _root(self, call: Primitive) -> Primitive:
        while (parent := self._parent.get(call, call)) is not call:
            call = parent
        return call

    def _resolve(self, value: Value, flow: Flow) -> frozenset[Value]:
        """Whose results a value consists of, groups (their roots) and tensors: copies that went
        stand for what they copied, and what parameters alone decide for these."""
        if isinstance(value, Tensor):
            return frozenset((value,))
        if value not in flow.resolved:
            flow.resolved[value] = self._resolve_call(value, flow)
        return flow.resolved[value]

    def _resolve_call(self, call: Primitive, flow: Flow) -> frozenset[Value]:
        recorded = call in self._calls
        if recorded and (group := self._root(call)) in self._alive:
            return frozenset((group,))
        values = list(chain.from_iterable(flow.reads[call].values()))
        if recorded and call not in self._copies and not self._is_constant(values):
            return frozenset((call,))
        return frozenset(one for value in values for one in self._resolve(value, flow))

    def _is_constant(self, values: Sequence[Value]) -> bool:
        """Whether these are parameters, in a net that keeps constants."""
        return self._constants is not None and self._data.issuperset(values)

    # -- the checks --------------------------------------------------------------------------------

    def _check_order(self, calls: Sequence[Primitive], *, backward: bool = False) -> None:
        """Calls run in the order of their layers also where they run layer by layer."""
        last = None
        for call in calls:
            position = call.position if call.position >= 0 else self._layers
            position = -position if backward else position
            if last is not None and position < last:
                self._fail(call, "comes after calls of layers that run later")
            last = position

    def _check_views(self, calls: Iterable[Primitive]) -> None:
        for call in calls:
            for tensor in operands(call):
                base = tensor.base
                if base is not None and (
                    base.count < tensor.start + tensor.count or base.layout is not None
                ):
                    self._fail(call, f"views {base} as {tensor}, but it is not row-major")

    def _check_written(self, flow: Flow) -> None:
        """What is read was written, or is there before the program begins."""
        for call, reads in flow.reads.items():
            for value in chain(*reads.values()):
                self._reads += 1
                if isinstance(value, Tensor) and not self._is_given(value):
                    self._fail(call, f"reads {value}, which nothing has written")

    def _is_given(self, tensor: Tensor) -> bool:
        """Whether a tensor holds something before the program begins."""
        return (
            tensor.persistent
            or (tensor.array is not None and tensor not in self._users)
            or tensor in self._data
            or tensor in self._initial
            or (self._accumulate and tensor in self._users)
        )

    def _check_values(self, calls: Sequence[Primitive], flow: Flow) -> None:
        """Each group of calls reads the values that its calls read when they were recorded."""
        recorded = self._recorded
        expected: defaultdict[Primitive, set[Value]] = defaultdict(set)
        for call, reads in recorded.reads.items():
            for value in chain.from_iterable(reads.values()):
                expected[self._root(call)] |= self._resolve(value, recorded)
        actual: defaultdict[Primitive, set[Value]] = defaultdict(set)
        # Of what is new, who reads what it makes is asked for what it reads.
        groups = [(call, self._root(call)) for call in calls if call in self._calls]
        for call, group in groups:
            for name, values in flow.reads[call].items():
                given = [self._resolve(value, flow) for value in values]
                every = set[Value]().union(*given)
                actual[group] |= every
                wrong = every - expected[group] - {group}
                if group not in self._several:
                    then = recorded.reads[call].get(name, [])
                    if given != [self._resolve(value, recorded) for value in then]:
                        wrong = wrong or every
                if wrong:
                    self._fail(call, f"reads as {name} what {self._who(wrong)} made")
        backward = {self._root(call) for call in calls if call not in self._forward}
        for call, group in groups:
            missing = expected[group] - actual[group] - {group}
            if group in self._several and call not in self._forward:
                # What forward noted of a value, or computed from it, may stand for the value.
                missing &= backward
            if missing:
                self._fail(call, f"does not read what {self._who(missing)} made")

    def _check_results(self, calls: Iterable[Primitive], flow: Flow) -> None:
        """What outlives the program holds what it held: parameters, gradients, outputs. What
        constants are made of stays as it is."""
        for tensor, call in self._recorded.written.items():
            if tensor.persistent or tensor in self._users or tensor in self._data:
                now = self._resolve(flow.value(tensor), flow)
                if now != self._resolve(call, self._recorded):
                    self._fail(call, f"no longer makes {tensor}: {self._who(now)} does")
        for call in calls:
            for tensor in owners(call.written_tensors()) & self._constant:
                self._fail(call, f"writes {tensor}, on which constants depend")

    def _check_gradients(self, backward: Sequence[Primitive]) -> None:
        """A parameter's gradient is begun once, then added to; by layers that use it alone, so that
        it is complete when the first of these has run backward."""
        begun: set[Tensor] = set()
        for call in backward:
            for name in call.written_fields:
                adds = name in call.accumulates or isinstance(call, ops.Host)
                for tensor in owners(tensors_in([getattr(call, name)])) & self._users.keys():
                    if adds != (self._accumulate or tensor in begun):
                        self._fail(call, f"{'adds to' if adds else 'overwrites'} {tensor}")
                    if self._users[tensor].isdisjoint(call.layers) and not call.fused:
                        self._fail(call, f"writes {tensor}, which is another layer's")
                    begun.add(tensor)

    def _who(self, values: Iterable[Value]) -> str:
        """Names for groups and tensors."""
        names = [repr(value) if value in self._calls else "something else" for value in values]
        return ", ".join(sorted(names)) or "nobody"

    def _fail(self, call: Primitive, what: str) -> None:
        raise VerificationError(f'pass "{self._pass}": {call} {what}')


def check_schedule(
    calls: Sequence[Primitive],
    size_of: Callable[[Tensor], int] | None,
    fail: Callable[[Primitive, str], None],
) -> None:
    """No call reads or overwrites memory that another, which it may overlap, still works on; and
    nothing is read whose memory something else has got since it was written.

    size_of gives a tensor's bytes; None: they have no memory yet, and share none. fail: called
    with the call that does, and what it does.
    """
    sharing = _sharing(calls, size_of) if size_of else {}
    accesses = [_Accesses(call, sharing) for call in calls]
    lost: dict[Tensor, Primitive] = {}
    """Tensors whose memory holds something else now, and the call that wrote that."""
    for index, (call, accessed) in enumerate(zip(calls, accesses, strict=True)):
        if ops.is_feed(call):
            continue  # it runs before all others, and places what it brings
        for tensor in accessed.reads & lost.keys():
            other = lost[tensor]
            fail(call, f"reads {tensor}, over which {other} has written")
        for tensor in accessed.changes:
            for shared in sharing.get(tensor, ()):
                if shared in accessed.reads or shared in accessed.changes:
                    fail(call, f"writes {tensor} over another of its operands")
                lost[shared] = call
        for tensor in accessed.writes:
            lost.pop(tensor, None)
        for later, others in zip(
            calls[index + 1 :][: call.overlap], accesses[index + 1 :], strict=False
        ):
            if not later.overlap and accessed.conflicts(others):
                fail(later, f"does not wait for {call}, which it overlaps")


class _Accesses:
    """The tensors that a call reads, writes and changes (its scratch memory, too); memory: what it
    changes, and all that shares memory with that."""

    def __init__(self, call: Primitive, sharing: dict[Tensor, list[Tensor]]) -> None:
        added = tensors_in(getattr(call, name) for name in call.accumulates)
        self.reads = owners((*call.read_tensors(), *added))
        self.writes = owners(call.written_tensors())
        self.changes = self.writes.union(call.scratch)
        self.memory = self.changes.union(*(sharing.get(tensor, ()) for tensor in self.changes))

    def conflicts(self, later: _Accesses) -> bool:
        """Whether two calls, of which one is to come after the other, may not run together."""
        return bool(self.memory & (later.changes | later.reads) or later.memory & self.reads)


def _sharing(
    calls: Iterable[Primitive], size_of: Callable[[Tensor], int]
) -> dict[Tensor, list[Tensor]]:
    """For each tensor that has memory, the others that share some of it."""
    tensors = owners(
        tensor
        for call in calls
        if not ops.is_feed(call)
        for tensor in (*operands(call), *call.scratch)
    )
    sharing: dict[Tensor, list[Tensor]] = {}
    alive: list[tuple[int, Tensor]] = []
    for tensor in sorted(tensors, key=lambda tensor: tensor.address):
        if tensor.array is None or not (size := size_of(tensor)):
            continue
        alive = [(end, other) for end, other in alive if end > tensor.address]
        for _, other in alive:
            sharing.setdefault(tensor, []).append(other)
            sharing.setdefault(other, []).append(tensor)
        alive.append((tensor.address + size, tensor))
    return sharing
