"""Traces of training steps. Each recorded operator call has a generated function that recognizes the same call later.

A function compares tensor layouts with torch's own guard, storages by address, and all other arguments by value. A
matching call is neither parsed nor recorded. The source of a function depends only on the kinds of the arguments, so
calls with arguments of the same kinds share one compiled function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch

from neurontools.runtime.counting.metrics import TENSORS_CREATED, TracedOperators
from neurontools.runtime.operators.layout import TensorLayout
from neurontools.runtime.operators.operator import DeviceOperator, OperatorSignature
from neurontools.runtime.tensors.buffers import Buffer, Core, Tensor
from neurontools.runtime.tensors.storages import NAME, SlotRange, capsule_of, from_dlpack, storages

MISS = object()
"""The result of a generated function if a call differs from the trace."""
_Guard: Any = torch._C._dynamo.guards.TensorGuards
_EXACT = frozenset({torch.dtype, torch.layout, torch.memory_format, str, torch.device, int, bool})


class NotTraceable(Exception):
    """A replay can't recognize a call by comparison, so its step is recorded each time."""


class ExpectedCall:
    """A call of a trace. `match` returns the results of an equal call, and MISS for a different one."""

    __slots__ = ("match", "operator", "position")

    def __init__(self, operator: DeviceOperator | None, position: int, match: Callable[[Any, Any], Any]) -> None:
        self.operator = operator
        self.position = position
        self.match = match


@dataclass(slots=True)
class ObservedCall:
    """A recorded call: generated source lines that recognize it when it recurs, and the values for the comparison."""

    operator: DeviceOperator
    signature: OperatorSignature
    first_result: int
    argument_count: int
    keyword_count: int
    apart: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)
    guard: Any = None
    written: dict[str | int, str] = field(default_factory=dict)

    def value(self, value: Any) -> str:
        self.values.append(value)
        return f"k{len(self.values) - 1}"


def observe_call(
    operator: DeviceOperator,
    signature: OperatorSignature,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    indices: Sequence[int],
    buffer_count: int,
    first_result: int,
) -> ObservedCall:
    """Generates the comparisons that recognize a recorded call when it recurs.

    `indices` are the numbers of the call's tensors in the graph. Tensors from number `buffer_count` on are new in this
    call. Raises NotTraceable for arguments other than device tensors, numbers and constants.
    """
    if operator.out_names or signature.host_count:
        raise NotTraceable(operator.name)
    call = ObservedCall(operator, signature, first_result, len(arguments), len(keywords))
    reader = _Reader(call, enumerate(indices), buffer_count, signature.slots_in_one_storage(indices))
    for position, value in enumerate(arguments):
        reader.argument(f"a{position}", value, position in operator.lifted_positions)
        call.written[position] = f"a{position}"
    for name, value in keywords.items():
        call.apart.append(f"n{name} = keywords.get({name!r}, MISS)")
        reader.argument(f"n{name}", value, name in operator.lifted_names)
        call.written[name] = f"n{name}"
    if call.tensors:
        call.guard = _Guard(
            *call.tensors,
            dynamic_dims_sizes=[list(t.shape) for t in call.tensors],
            dynamic_dims_strides=[list(t.stride()) for t in call.tensors],
        )
        call.tensors = []
    return call


class _Reader:
    """Generates the source code that compares the arguments of a call with the arguments of the recorded call."""

    def __init__(self, call: ObservedCall, indices: Any, buffer_count: int, fixed_slots: set[int]) -> None:
        self.call = call
        self.indices = indices
        self.buffer_count = buffer_count
        self.fixed_slots = fixed_slots
        self.new: set[int] = set()

    def argument(self, name: str, value: Any, lifted: bool) -> None:
        kind = value.__class__
        lines = self.call.checks
        if isinstance(value, Tensor):
            self.tensor(name, value)
        elif value is None:
            lines.append(f"if {name} is not None: return MISS")
        elif kind is list or kind is tuple:
            self.sequence(name, value, lifted)
        elif lifted and (kind is float or kind is int):
            lines.append(f"if {name}.__class__ is not {kind.__name__}: return MISS")
            self.call.scalars.append(name)
        elif kind in _EXACT:
            constant = self.call.value(value)
            lines.append(f"if {name} != {constant} or {name}.__class__ is not {constant}.__class__: return MISS")
        else:
            raise NotTraceable(f"{self.call.operator.name}: {kind.__name__}")

    def sequence(self, name: str, value: Any, lifted: bool) -> None:
        kind, call = value.__class__, self.call
        if any(isinstance(item, Tensor) for item in value):
            parts = [f"{name}_{number}" for number in range(len(value))]
            call.apart.append(f"if {name}.__class__ is not {kind.__name__} or len({name}) != {len(value)}: return MISS")
            call.apart.append(f"{', '.join(parts)}, = {name}")
            for part, item in zip(parts, value, strict=True):
                self.argument(part, item, lifted)
        elif lifted and all(item.__class__ is float or item.__class__ is int for item in value):
            kinds = call.value([item.__class__ for item in value])
            call.checks.append(f"if [item.__class__ for item in {name}] != {kinds}: return MISS")
            call.scalars.append(f"*{name}")
        elif not lifted and len({item.__class__ for item in value}) <= 1 and all(i.__class__ in _EXACT for i in value):
            # The operator's schema fixes the class of the items, so `!=` can't confuse True with 1.
            constant = call.value(list(value) if kind is list else value)
            call.checks.append(f"if {name} != {constant}: return MISS")
        else:
            raise NotTraceable(call.operator.name)

    def tensor(self, name: str, value: Tensor) -> None:
        call = self.call
        if value.is_cpu or not value.numel():
            raise NotTraceable(call.operator.name)
        slot, index = next(self.indices)
        number = call.value(index)
        same = next((n for n, t in zip(call.names, call.tensors, strict=True) if t is value), None)
        offset = value.storage_offset()
        if offset:
            call.checks.append(f"{name}_o = {name}.storage_offset()")
            is_fixed = slot in self.fixed_slots  # at another offset, the tensor may overlap one that the call changes
            call.checks.append(
                f"if {name}_o != {call.value(offset)}: return MISS" if is_fixed else f"if not {name}_o: return MISS"
            )
            call.scalars.append(f"{name}_o")
            address = f"{name}.data_ptr() - {name}_o * {value.element_size()}"
        else:
            address = f"{name}.data_ptr()"
        if same is not None:
            call.checks.append(f"if {name} is not {same}: return MISS")
            return
        if index >= self.buffer_count and index not in self.new:
            self.new.add(index)
            call.checks.append(f"if not bind({number}, {address}): return MISS")
        else:
            call.checks.append(f"if {address} != A[{number}]: return MISS")
        call.names.append(name)
        call.tensors.append(value)


def operator_counts(signatures: Iterable[OperatorSignature]) -> Counter[str]:
    """Counts recorded calls as torch_xla does: the calls of each ATen operator, and the tensors that they return."""
    counts: Counter[str] = Counter()
    for signature in signatures:
        if signature.operator.counter is not None:
            counts[signature.operator.counter] += 1
        counts[TENSORS_CREATED] += signature.result_count
    return counts


class Trace:
    """A recorded step on one core, and the state of its current replay.

    `buffers[i]` is the buffer with number i in the graph, or None for a temporary: a result that is dead when the step
    ends. Temporaries have no buffers, only slots in `range`. `addresses` has the addresses of buffers and temporaries.
    """

    def __init__(
        self,
        core: Core,
        observed: list[ObservedCall],
        key: list[int],
        listed: list[Buffer],
        alive: bytes,
        program: Any,
        make_output: Callable[[Trace, int], Tensor],
        advance: Any,
    ) -> None:
        self.core = core
        self.key = key
        self.signatures = [call.signature for call in observed]
        self.operators = TracedOperators(operator_counts(self.signatures))
        self.layouts: list[TensorLayout] = [buffer.layout for buffer in listed]
        self.alive = alive
        self.program = program
        self.scalars: list[Any] = []
        count = len(listed)
        self.buffers: list[Buffer | None] = [None] * count
        self.addresses = [0] * count
        self.slots = [0] * count
        self.pointers = [0] * count
        results = {number for call in observed for number in _result_numbers(call)}
        self.temporaries = [number for number in sorted(results) if not alive[number]]
        self.named = [number for number in range(count) if number not in results or alive[number]]
        self.live_pattern = [bool(alive[number]) for number in self.named]
        self.range: SlotRange | None = None
        # Lengths of the graph's lists before each call, to which a bail-out at that call cuts the lists.
        self.key_ends, self.buffer_counts, self.scalar_counts = _end_positions(observed, key)
        self.misses = 0
        self.skips = 0
        self.end = ExpectedCall(None, len(observed), lambda _arguments, _keywords: MISS)
        next_call = self.end
        for position in range(len(observed) - 1, -1, -1):
            call = observed[position]
            next_call = ExpectedCall(call.operator, position, self._function(call, next_call, make_output, advance))
        self.first = next_call

    def prepare(self) -> None:
        self.scalars.clear()
        self.buffers[:] = [None] * len(self.buffers)
        if self.range is None and self.temporaries:
            self.range = storages.allocate_range([self.layouts[n] for n in self.temporaries], self.core.local_index)
            for position, number in enumerate(self.temporaries):
                self.slots[number] = self.range.slots[position]
                self.addresses[number] = self.range.addresses[position]
                self.pointers[number] = self.range.pointers[position]

    def has_same_liveness(self) -> bool:
        """Returns whether the same inputs and results are alive as at the end of the recorded step."""
        words = storages.words
        listed: Any = self.buffers
        return (self.range is None or storages.is_dead(self.range)) and self.live_pattern == [
            words[(buffer := listed[number]).slot] == buffer.address for number in self.named
        ]

    def release_slots(self) -> None:
        """Turns the trace's temporaries into ordinary storages, because the script may still hold their tensors."""
        if self.range is not None:
            storages.release_range(self.range)
            self.range = None

    def _function(
        self, call: ObservedCall, next_call: ExpectedCall, make_output: Callable[[Trace, int], Tensor], advance: Any
    ) -> Callable[[Any, Any], Any]:
        make_function = _compile_call(_source_of_call(call, self._results(call)))
        guard = call.guard and call.guard.check
        bind, output = partial(advance.bind, self), partial(make_output, self)
        lists = (self.addresses, self.slots, self.pointers, self.scalars)
        function: Callable[[Any, Any], Any] = make_function(
            advance, next_call, guard, *lists, bind, output, storages.words, call.values
        )
        return function

    def _results(self, call: ObservedCall) -> str:
        numbers = iter(_result_numbers(call))
        outputs = call.signature.outputs or (None,) * len(call.operator.returns)

        def expression(output: Any) -> str:
            if output is None:
                return "None"
            if isinstance(output, list):
                return "[" + ", ".join(map(expression, output)) + "]"
            number = next(numbers)
            name = call.value(number)
            return f"out({name})" if self.alive[number] else f"new({name})"

        parts = [
            expression(output)
            if written is None
            else call.written.get(written[1]) or call.written.get(written[0]) or "None"
            for output, written in zip(outputs, call.operator.returns, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return "(" + ", ".join(parts) + ",)" if parts else "None"


def _result_numbers(call: ObservedCall) -> range:
    return range(call.first_result, call.first_result + call.signature.result_count)


def _end_positions(observed: list[ObservedCall], key: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Returns the lengths of the graph's key, buffers and scalars before each call and at the end."""
    key_ends, buffer_counts, scalar_counts = [0], [0], [0]
    position = 0
    for call in observed:
        while key[position] < 0:
            position += 1
        position += 1 + call.signature.tensor_count
        key_ends.append(position)
        buffer_counts.append(call.first_result + call.signature.result_count)
        scalar_counts.append(scalar_counts[-1] + call.signature.scalar_count)
    return key_ends, buffer_counts, scalar_counts


def _source_of_call(call: ObservedCall, results: str) -> str:
    expression = "from_dlpack(capsule_of(P[{0}], NAME, None))"
    lines = [
        "def make(advance, next_call, check, A, Z, P, scalars, bind, out, words, values):",
        *([f"    {', '.join(f'k{i}' for i in range(len(call.values)))}, = values"] if call.values else []),
        "    extend = scalars.extend",
        "    def take(arguments, keywords):",
        f"        if len(arguments) != {call.argument_count}: return MISS",
        f"        if len(keywords) != {call.keyword_count}: return MISS",
    ]
    if call.argument_count:
        lines.append(f"        {', '.join(f'a{i}' for i in range(call.argument_count))}, = arguments")
    # The generated function first unpacks lists, so that one call of torch's guard checks the layouts of all tensors.
    lines += [f"        {line}" for line in call.apart]
    if call.names:
        lines.append(f"        if not check({', '.join(call.names)}): return MISS")
    lines += [f"        {line}" for line in call.checks]
    while "new(" in results:
        before, _, rest = results.partition("new(")
        name, _, after = rest.partition(")")
        lines.append(f"        words[Z[{name}]] = A[{name}]")
        results = before + expression.format(name) + after
    lines.append(f"        result = {results}")
    if call.scalars:
        lines.append(f"        extend(({', '.join(call.scalars)},))")
    lines += ["        advance.ahead = next_call", "        return result", "    return take"]
    return "\n".join(lines)


@lru_cache(maxsize=4096)
def _compile_call(source: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"MISS": MISS, "NAME": NAME, "capsule_of": capsule_of, "from_dlpack": from_dlpack}
    # exec is safe: the source has only names of types and parameters, and numbers. Values of the script are not in it.
    exec(compile(source, "<traced call>", "exec"), names)  # noqa: S102
    make_function: Callable[..., Any] = names["make"]
    return make_function
