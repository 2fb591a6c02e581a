"""Compiles graphs: parses NEURON_CC_FLAGS, hashes a graph's text, and plans its instructions and memory."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neurontools.runtime.operators.layout import TensorLayout
from neurontools.runtime.operators.operator import HostSlot, OperatorSignature, ScalarSlot, TensorSlot, flattened
from neurontools.runtime.programs.compiled_graph import CompiledGraph, HostInput, Instruction, ScalarInput, ValueUse
from neurontools.runtime.tensors.buffers import Graph


@dataclass(slots=True)
class _GraphCall:
    """A recorded operator call. `tensors` and `results` are value numbers.

    `first_scalar` is the index of the call's first scalar among the graph's scalars, `first_host` the index of its
    first CPU tensor among the graph's CPU tensors.
    """

    signature: OperatorSignature
    tensors: list[int]
    first_scalar: int
    first_host: int
    results: tuple[Any, ...]


def graph_text(graph: Graph, alive: bytes) -> str:
    """Returns the recorded graph as text, the input of `graph_hash`. Equal texts mean equal computations."""
    lines = []
    position = number = 0
    key = graph.key
    for signature in graph.signatures:
        while key[position] < 0:
            lines.append(f"%{number} = input {graph.buffers[number].layout.text()}")
            number += 1
            position += 1
        position += 1
        used = key[position : position + signature.tensor_count]
        position += signature.tensor_count
        results = " ".join(f"%{n}" for n in range(number, number + signature.result_count))
        number += signature.result_count
        lines.append(f"{results} = {signature.text()} of {' '.join(f'%{n}' for n in used)}")
    lines.append("alive " + " ".join(f"%{n}" for n, flag in enumerate(alive) if flag))
    return "\n".join(lines)


def graph_hash(text: str) -> str:
    """Returns the hash of a graph's text: a decimal of up to 20 digits, as in the names of the compile cache."""
    return str(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))


def compile_graph(graph: Graph, alive: bytes, hash_text: str, flags_hash: str) -> CompiledGraph:
    """Compiles a graph. alive[i] is nonzero if the storage of buffer i is alive.

    Removes operators that have no side effect, draw no random numbers and contribute to no live storage.
    """
    calls, layouts, inputs = _graph_calls(graph)
    live_calls = _without_dead(calls, alive)
    is_input = set(inputs)
    instructions, scratchpad_bytes = _plan(live_calls, layouts, is_input, alive)
    used = {number for call in live_calls for number in call.tensors}
    computed = {number for call in live_calls for number in flattened(call.results)}
    return CompiledGraph(
        graph_hash=hash_text,
        flags_hash=flags_hash,
        inputs=tuple(number for number in inputs if number in used),
        outputs=tuple(number for number in sorted(computed) if alive[number]),
        instructions=instructions,
        layouts={number: layouts[number] for number in sorted(used | computed)},
        flops_by_dtype=_flops_by_dtype(live_calls, layouts),
        scratchpad_bytes=scratchpad_bytes,
        removed_count=len(calls) - len(live_calls),
    )


def live_operators(graph: Graph, alive: bytes) -> list[tuple[int, OperatorSignature]]:
    """Returns the position and signature of each operator that `compile_graph` keeps, in the graph's order."""
    calls, _, _ = _graph_calls(graph)
    positions = {id(call): position for position, call in enumerate(calls)}
    return [(positions[id(call)], call.signature) for call in _without_dead(calls, alive)]


def _graph_calls(graph: Graph) -> tuple[list[_GraphCall], dict[int, TensorLayout], list[int]]:
    """Returns the calls of a graph, the layout of each value, and the value numbers of the inputs."""
    calls: list[_GraphCall] = []
    layouts: dict[int, TensorLayout] = {}
    inputs: list[int] = []
    position = number = scalars = hosts = 0
    key = graph.key
    for signature in graph.signatures:
        while key[position] < 0:
            layouts[number] = graph.buffers[number].layout
            inputs.append(number)
            number += 1
            position += 1
        position += 1
        tensors = key[position : position + signature.tensor_count]
        position += signature.tensor_count
        results: list[Any] = []
        for output in signature.outputs or (None,) * len(signature.operator.returns):
            result, number = _numbered(output, number, layouts)
            results.append(result)
        calls.append(_GraphCall(signature, tensors, scalars, hosts, tuple(results)))
        scalars += signature.scalar_count
        hosts += signature.host_count
    return calls, layouts, inputs


def _numbered(output: Any, number: int, layouts: dict[int, TensorLayout]) -> tuple[Any, int]:
    """Returns the numbers of an operator's outputs, from `number` on, and the next free number."""
    if output is None:
        return None, number
    if isinstance(output, list):
        numbers = []
        for item in output:
            result, number = _numbered(item, number, layouts)
            numbers.append(result)
        return numbers, number
    layouts[number] = output
    return number, number + 1


def _flops_by_dtype(calls: list[_GraphCall], layouts: dict[int, TensorLayout]) -> dict[str, int]:
    """Returns the FLOPs of the calls, by element type of the first operand, such as `float32`."""
    flops: Counter[str] = Counter()
    for call in calls:
        if call.signature.flops:
            dtype = layouts[call.tensors[0]].device_dtype
            flops[str(dtype).removeprefix("torch.")] += call.signature.flops
    return dict(flops)


def _without_dead(calls: list[_GraphCall], alive: bytes) -> list[_GraphCall]:
    """Returns the calls that are not dead, in the graph's order.

    A call stays if it has a side effect, draws random numbers, or computes or changes a value that is needed later.
    """
    live = {number for number, flag in enumerate(alive) if flag}
    live_calls = []
    for call in reversed(calls):
        operator = call.signature.operator
        touched = {call.tensors[slot] for slot in call.signature.written_slots}
        touched.update(flattened(call.results))
        if operator.effect or operator.random or not live.isdisjoint(touched):
            live_calls.append(call)
            live.update(call.tensors)
            live.update(touched)
    live_calls.reverse()
    return live_calls


def _plan(
    calls: list[_GraphCall], layouts: dict[int, TensorLayout], inputs: set[int], alive: bytes
) -> tuple[tuple[Instruction, ...], int]:
    """Returns the instructions, with the values that die after each, and the peak size of temporaries in bytes."""
    last_use: dict[int, int] = {}
    for index, call in enumerate(calls):
        for number in (*call.tensors, *flattened(call.results)):
            last_use[number] = index
    instructions = []
    current = peak = 0
    for index, call in enumerate(calls):
        results = list(flattened(call.results))
        current += sum(layouts[number].nbytes for number in results if not alive[number])
        peak = max(peak, current)
        dead = tuple(
            number
            for number in dict.fromkeys((*call.tensors, *results))
            if last_use[number] == index and not alive[number] and number not in inputs
        )
        current -= sum(layouts[number].nbytes for number in dead)
        instructions.append(_instruction_of(call, layouts, dead))
    return tuple(instructions), peak


def _instruction_of(call: _GraphCall, layouts: dict[int, TensorLayout], dead: tuple[int, ...]) -> Instruction:
    signature = call.signature

    def bound(slot: Any) -> Any:
        if isinstance(slot, TensorSlot):
            number = call.tensors[slot.slot]
            if slot.offset is None and layouts[number] is slot.layout:
                return ValueUse(number)
            return ValueUse(number, slot.layout, None if slot.offset is None else call.first_scalar + slot.offset)
        if isinstance(slot, ScalarSlot):
            return ScalarInput(call.first_scalar + slot.index)
        if isinstance(slot, HostSlot):
            return HostInput(call.first_host + slot.index)
        if isinstance(slot, list):
            return [bound(item) for item in slot]
        return slot

    return Instruction(
        signature.operator,
        tuple(bound(slot) for slot in signature.arguments),
        {name: bound(slot) for name, slot in signature.keywords.items()},
        call.results,
        tuple(call.tensors[slot] for slot in signature.written_slots),
        dead,
    )


CC_FLAGS = "NEURON_CC_FLAGS"

_CHOICES: dict[str, tuple[str, ...]] = {
    "--auto-cast": ("none", "matmult", "all"),
    "--auto-cast-type": ("bf16", "fp16", "tf32", "fp8_e4m3"),
    "--model-type": ("generic", "transformer", "unet-inference"),
    "--optlevel": ("1", "2", "3"),
    "--target": ("inf2", "trn1", "trn1n", "trn2", "trn3"),
    "--logical-nc-config": ("1", "2"),
    "--distribution-strategy": ("llm-training", "nemo"),
    "--verbose": ("trace", "debug", "info", "warning", "error", "critical", "user", "35"),
}
_WITHOUT_LNC = frozenset({"inf2", "trn1", "trn1n"})
_ALIASES = {"-O": "--optlevel", "-lnc": "--logical-nc-config", "-v": "--verbose", "--lnc": "--logical-nc-config"}
_SWITCHES = frozenset(
    """--enable-saturate-infinity --enable-mixed-precision-accumulation --disable-mixed-precision-accumulation
 --enable-fast-context-switch --enable-fast-loading-neuron-binaries --disable-internal-io-dge
 --internal-enable-dge-levels""".split()
)
_WRAPPER_SWITCHES = frozenset({"--no_cache", "--retry_failed_compilation"})
_WRAPPER_VALUES = frozenset(
    {"--cache_dir", "--log_level", "--hbm-scratchpad-page-size", "--dump", "--tensorizer-options"}
)


class InvalidCompilerFlags(ValueError):
    """The compiler would reject these flags. The message is the compiler's message and a remedy."""


@dataclass(frozen=True, slots=True)
class CompilerFlags:
    """Parsed compiler flags. If a flag is repeated, its last value counts."""

    auto_cast: str = "none"
    auto_cast_type: str = "bf16"
    model_type: str = "generic"
    optlevel: int = 2
    target: str | None = None
    logical_neuroncore_config: int | None = None
    cache_dir: str | None = None
    no_cache: bool = False
    retry_failed_compilation: bool = False
    passed_on: tuple[str, ...] = ()

    @property
    def hash_text(self) -> str:
        """The first eight hex digits of the MD5 hash of `passed_on`, the flags that reach the compiler."""
        return hashlib.md5(" ".join(self.passed_on).encode(), usedforsecurity=False).hexdigest()[:8]


def parse_compiler_flags(given: str | Sequence[str], origin: str = CC_FLAGS) -> CompilerFlags:
    """Parses compiler flags: the value of NEURON_CC_FLAGS, or a list of flags. `origin` names them in errors.

    Raises InvalidCompilerFlags for flags that the compiler would refuse.
    """
    try:
        words = shlex.split(given) if isinstance(given, str) else [*given]
    except ValueError as error:
        raise InvalidCompilerFlags(f"{origin}={given!r}: {error}; close the quote") from None
    values: dict[str, str] = {}
    passed_on: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        name, equals, value = word.partition("=")
        if name.startswith("-O") and len(name) > 2 and not equals:
            name, value, equals = "-O", name[2:], "="
        name = _ALIASES.get(name, name)
        if name in _WRAPPER_SWITCHES:
            values[name] = "1"
            continue
        if name in _SWITCHES:
            passed_on.append(word)
            continue
        if name not in _CHOICES and name not in _WRAPPER_VALUES:
            raise InvalidCompilerFlags(
                f"{origin}: unrecognized argument {word!r}; known are {', '.join(sorted(_CHOICES))}"
            )
        if not equals:
            if position == len(words):
                raise InvalidCompilerFlags(f"{origin}: argument {name}: expected one argument")
            value = words[position]
            position += 1
        if name in _CHOICES:
            if value not in _CHOICES[name]:
                raise InvalidCompilerFlags(
                    f"{origin}: argument {name}: invalid choice: {value!r} (choose from {', '.join(_CHOICES[name])})"
                )
            passed_on += [name, value]
        values[name] = value
    if values.get("--logical-nc-config") == "2" and values.get("--target") in _WITHOUT_LNC:
        raise InvalidCompilerFlags(
            f"{origin}: argument --logical-nc-config: {values['--target']} has no logical NeuronCores of 2; use 1"
        )
    return CompilerFlags(
        auto_cast=values.get("--auto-cast", "none"),
        auto_cast_type=values.get("--auto-cast-type", "bf16"),
        model_type=values.get("--model-type", "generic"),
        optlevel=int(values.get("--optlevel", "2")),
        target=values.get("--target"),
        logical_neuroncore_config=int(values["--logical-nc-config"]) if "--logical-nc-config" in values else None,
        cache_dir=values.get("--cache_dir"),
        no_cache="--no_cache" in values,
        retry_failed_compilation="--retry_failed_compilation" in values,
        passed_on=tuple(passed_on),
    )
