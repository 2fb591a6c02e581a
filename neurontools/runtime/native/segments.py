"""Segments, the runs of instructions that become machine code, and archives, which store the machine code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from neurontools.runtime.operators.layout import layouts
from neurontools.runtime.operators.operator import flattened
from neurontools.runtime.programs.compiled_graph import CompiledGraph, HostInput, Instruction, ScalarInput, ValueUse

_SHORTEST = 2
_TYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool})
_NAMES = frozenset(
    """add sub mul div rsub neg abs sqrt rsqrt reciprocal exp log log1p expm1 sin cos tanh sigmoid relu gelu silu
 leaky_relu elu hardtanh clamp clamp_min clamp_max minimum maximum pow square addcmul addcdiv lerp where eq ne
 lt le gt ge masked_fill threshold_backward gelu_backward silu_backward tanh_backward sigmoid_backward mse_loss
 leaky_relu_backward elu_backward hardtanh_backward softplus softplus_backward clone copy zero fill zeros_like
 ones_like full_like logical_and logical_or logical_not native_dropout_backward mse_loss_backward sum mean amax
 amin _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data native_layer_norm
 native_layer_norm_backward native_batch_norm native_batch_norm_backward mm bmm addmm baddbmm linear
 linear_backward convolution convolution_backward cat stack select_backward slice_backward constant_pad_nd norm
 linalg_vector_norm _scaled_dot_product_flash_attention_for_cpu
 _scaled_dot_product_flash_attention_for_cpu_backward""".split()
)
_CHANGING = frozenset({"add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp"})
"""Operators whose scalar arguments may change between executions of machine code."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of instructions that is compiled as one function: from `first` up to, but not including, `end`.

    `inputs` and `outputs` are value numbers. `updated` are the inputs that the function changes in place. `fixed` and
    `changing` are indices of scalars. Fixed scalars are constants in the function, changing scalars are its inputs.
    """

    first: int
    end: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    updated: tuple[int, ...]
    fixed: tuple[int, ...]
    changing: tuple[int, ...]


def base_name(name: str) -> str:
    """Returns an operator's name without namespace, overload, in-place underscore and `_foreach_`."""
    short = name.removeprefix("aten::").partition(".")[0].removeprefix("_foreach_")
    return short if short.startswith("_") else short.rstrip("_")


def segments_of(compiled: CompiledGraph, changing: Collection[int]) -> list[Segment]:
    """Returns the runs of instructions that may become machine code.

    `changing` has the indices of scalars that differ between executions.
    """
    found = []
    first = 0
    for position, instruction in enumerate([*compiled.instructions, None]):
        if instruction is not None and _is_computation(instruction, compiled, changing):
            continue
        if position - first >= _SHORTEST:
            found.append(_make_segment(compiled, first, position, changing))
        first = position + 1
    return [segment for segment in found if segment.outputs or segment.updated]


def _is_computation(instruction: Instruction, compiled: CompiledGraph, changing: Collection[int]) -> bool:
    operator = instruction.operator
    name = base_name(operator.name)
    if not operator.name.startswith("aten::") or name not in _NAMES:
        return False
    if operator.random or operator.effect or operator.dynamic or not operator.trusted or operator.has_generator:
        return False
    parts = list(_flat_parts(instruction))
    uses = [part for part in parts if isinstance(part, ValueUse)]
    if any(isinstance(part, HostInput) for part in parts) or any(use.offset in changing for use in uses):
        return False
    if name not in _CHANGING and any(isinstance(part, ScalarInput) and part.index in changing for part in parts):
        return False
    numbers = {*(use.value for use in uses), *flattened(instruction.results)}
    if not numbers or layouts.narrowed or not {compiled.layouts[n].device_dtype for n in numbers} <= _TYPES:
        return False
    return all(
        use.layout is None or use.layout.device_dtype is compiled.layouts[use.value].device_dtype for use in uses
    )


def _flat_parts(instruction: Instruction) -> Iterator[Any]:
    return flattened([instruction.arguments, *instruction.keywords.values()])


def _make_segment(compiled: CompiledGraph, first: int, end: int, changing: Collection[int]) -> Segment:
    inside = compiled.instructions[first:end]
    inner_results = {number for instruction in inside for number in flattened(instruction.results)}
    used: dict[int, None] = {}
    scalars: set[int] = set()
    for instruction in inside:
        for part in _flat_parts(instruction):
            if isinstance(part, ValueUse):
                if part.value not in inner_results:
                    used[part.value] = None
                if part.offset is not None:
                    scalars.add(part.offset)
            elif isinstance(part, ScalarInput):
                scalars.add(part.index)
    later = {
        part.value
        for instruction in compiled.instructions[end:]
        for part in _flat_parts(instruction)
        if isinstance(part, ValueUse)
    }
    needed = later.union(compiled.outputs)
    written = {number for instruction in inside for number in instruction.written}
    return Segment(
        first,
        end,
        tuple(used),
        tuple(sorted(inner_results & needed)),
        tuple(number for number in used if number in written),
        tuple(sorted(scalars.difference(changing))),
        tuple(sorted(scalars.intersection(changing))),
    )


ARCHIVE_FORMAT = "neurontools-machine-code-1"
LARGEST_BYTES = 256 << 20
_DIGEST_LENGTH = 64
_CPU_FIELDS = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU part")


class InvalidArchive(ValueError):
    """An archive is damaged, or belongs to another graph or machine. The message is the reason."""


@cache
def _processor() -> str:
    """Returns the lines of /proc/cpuinfo that decide which machine code the compiler generates."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return "unknown"
    own = lines[: [*lines, ""].index("")]  # the lines of the first processor; the other processors are equal
    return "\n".join(line for line in own if line.partition("\t")[0] in _CPU_FIELDS)


def machine_key(threads: int) -> str:
    """Returns a hash of the torch version, the processor and the thread count, as 16 hexadecimal digits.

    Machine code for a graph is valid only with the same torch version, processor and thread count.
    """
    text = "\n".join((ARCHIVE_FORMAT, torch.__version__, _processor(), str(threads)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Archive:
    """The machine code of a graph: one shared object for each segment.

    `fixed` has the index and the value of each scalar that is a constant in the code. If the build failed, the archive
    has no code, and `refusal` is the reason.
    """

    module: str
    key: str
    segments: tuple[Segment, ...] = ()
    objects: tuple[bytes, ...] = ()
    fixed: tuple[tuple[int, float | int | bool], ...] = ()
    changing: tuple[int, ...] = ()
    refusal: str = ""

    def to_bytes(self) -> bytes:
        """Serializes the archive: a SHA-256 digest of the following bytes, a line of JSON, and the shared objects."""
        head = {
            "module": self.module,
            "key": self.key,
            "segments": [[s.first, s.end, s.inputs, s.outputs, s.updated, s.fixed, s.changing] for s in self.segments],
            "sizes": [len(each) for each in self.objects],
            "fixed": [[index, value.hex() if isinstance(value, float) else value] for index, value in self.fixed],
            "changing": self.changing,
            "refusal": self.refusal,
        }
        content = json.dumps(head).encode() + b"\n" + b"".join(self.objects)
        return hashlib.sha256(content).hexdigest().encode() + content

    @classmethod
    def from_bytes(cls, data: bytes, module: str, key: str) -> Archive:
        """Parses a serialized archive. Raises InvalidArchive if its digest, module or key does not match."""
        digest, content = data[:_DIGEST_LENGTH], data[_DIGEST_LENGTH:]
        if hashlib.sha256(content).hexdigest().encode() != digest:
            raise InvalidArchive("its digest does not match")
        line, _, rest = content.partition(b"\n")
        head = json.loads(line)
        if (head["module"], head["key"]) != (module, key):
            raise InvalidArchive("it belongs to another graph or machine")
        objects = []
        for size in head["sizes"]:
            objects.append(rest[:size])
            rest = rest[size:]
        return cls(
            module,
            key,
            tuple(Segment(first, end, *map(tuple, lists)) for first, end, *lists in head["segments"]),
            tuple(objects),
            tuple((index, float.fromhex(v) if isinstance(v, str) else v) for index, v in head["fixed"]),
            tuple(head["changing"]),
            head["refusal"],
        )
