"""A compiled graph: instructions over numbered values. It is cached on disk and loaded onto a core."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch

from neurontools.estimate.families import CAUSAL_ATTENTION
from neurontools.runtime.operators.layout import TensorLayout, layouts
from neurontools.runtime.operators.operator import DeviceOperator, operators

FORMAT = "neurontools-neff-2"


class InvalidCompiledGraph(ValueError):
    """A compiled graph can't be read or written. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class ValueUse:
    """A value as an argument: the whole value, or a view of it if `layout` is set.

    The graph's scalar number `offset` is the view's storage offset. If `offset` is None, the storage offset is 0.
    """

    value: int
    layout: TensorLayout | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class ScalarInput:
    """A scalar argument that each execution passes; `index` is its position among the graph's scalars."""

    index: int


@dataclass(frozen=True, slots=True)
class HostInput:
    """A CPU tensor that each execution passes; `index` is its position among the graph's CPU tensors."""

    index: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One operator call. Its values are identified by numbers.

    `results` has an item for each result of the operator: its number, a list of numbers for a list of tensors, or None.
    `written` are the values that the call changes in place. `dead` are the values that no later instruction needs.
    """

    operator: DeviceOperator
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    results: tuple[Any, ...]
    written: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()


@dataclass(slots=True)
class CompiledGraph:
    """An executable graph.

    `inputs` and `outputs` are value numbers. The number of a value is the index of its buffer in the recorded graph.
    `layouts` has the layout of every value. `flops_by_dtype` counts FLOPs by the element type of the multiplied
    operands. `scratchpad_bytes` is the planned peak size of all values that are neither inputs nor outputs.
    """

    graph_hash: str
    flags_hash: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    layouts: dict[int, TensorLayout]
    flops_by_dtype: dict[str, int]
    scratchpad_bytes: int
    removed_count: int
    module: str = field(init=False)

    def __post_init__(self) -> None:
        self.module = f"MODULE_{self.graph_hash}+{self.flags_hash}"

    @property
    def flops(self) -> int:
        """FLOPs of one execution."""
        return sum(self.flops_by_dtype.values())

    @property
    def operator_names(self) -> list[str]:
        """The sorted names of the operators, with `CAUSAL_ATTENTION` if an attention is causal by its argument."""
        names = {instruction.operator.name for instruction in self.instructions}
        for instruction in self.instructions:
            if "scaled_dot_product" in instruction.operator.name and True in instruction.arguments:
                names.add(CAUSAL_ATTENTION)
        return sorted(names)

    def to_json(self) -> bytes:
        """Returns the graph as JSON, which `from_json` parses."""
        document = {
            "format": FORMAT,
            "torch": torch.__version__,
            "graph_hash": self.graph_hash,
            "flags_hash": self.flags_hash,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "flops_by_dtype": self.flops_by_dtype,
            "scratchpad_bytes": self.scratchpad_bytes,
            "removed_count": self.removed_count,
            "layouts": {str(number): _layout_to_json(layout) for number, layout in self.layouts.items()},
            "instructions": [
                [
                    i.operator.name,
                    [_to_json(a) for a in i.arguments],
                    {name: _to_json(a) for name, a in i.keywords.items()},
                    i.results,
                    i.written,
                    i.dead,
                ]
                for i in self.instructions
            ],
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> CompiledGraph:
        """Parses the output of `to_json`, which contains no code. Raises InvalidCompiledGraph for anything else."""
        try:
            document = json.loads(data)
            if document["format"] != FORMAT or document["torch"] != torch.__version__:
                raise InvalidCompiledGraph(f"made for {document['format']}, torch {document['torch']}")
            return cls(
                graph_hash=str(document["graph_hash"]),
                flags_hash=str(document["flags_hash"]),
                inputs=tuple(map(int, document["inputs"])),
                outputs=tuple(map(int, document["outputs"])),
                instructions=tuple(
                    Instruction(
                        operators.get(name),
                        tuple(_from_json(a) for a in arguments),
                        {key: _from_json(value) for key, value in keywords.items()},
                        _result_numbers(results),
                        tuple(map(int, written)),
                        tuple(map(int, dead)),
                    )
                    for name, arguments, keywords, results, written, dead in document["instructions"]
                ),
                layouts={int(number): _layout_from_json(parts) for number, parts in document["layouts"].items()},
                flops_by_dtype={str(dtype): int(flops) for dtype, flops in document["flops_by_dtype"].items()},
                scratchpad_bytes=int(document["scratchpad_bytes"]),
                removed_count=int(document["removed_count"]),
            )
        except InvalidCompiledGraph:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise InvalidCompiledGraph(f"{type(error).__name__}: {error}") from None


_CONSTANTS: dict[str, Any] = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format))
}
"""torch's dtypes, layouts and memory formats, by name."""


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, ValueUse):
        layout = None if value.layout is None else _layout_to_json(value.layout)
        return {"use": [value.value, layout, value.offset]}
    if isinstance(value, ScalarInput):
        return {"scalar": value.index}
    if isinstance(value, HostInput):
        return {"host": value.index}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format, torch.device)):
        return {"torch": str(value)}
    raise InvalidCompiledGraph(f"a {type(value).__name__} can't be part of a compiled graph")


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "use":
        number, layout, offset = content
        return ValueUse(int(number), None if layout is None else _layout_from_json(layout), offset)
    if kind == "scalar":
        return ScalarInput(int(content))
    if kind == "host":
        return HostInput(int(content))
    if kind == "float":
        return float.fromhex(content)
    if kind == "complex":
        return complex(float.fromhex(content[0]), float.fromhex(content[1]))
    if kind == "torch":
        return _CONSTANTS[content] if content in _CONSTANTS else torch.device(content)
    raise InvalidCompiledGraph(f"unknown kind of argument {kind!r}")


def _layout_to_json(layout: TensorLayout) -> list[Any]:
    return [list(layout.size), list(layout.stride), str(layout.dtype)]


def _layout_from_json(parts: list[Any]) -> TensorLayout:
    size, stride, dtype = parts
    return layouts.get(tuple(map(int, size)), tuple(map(int, stride)), _CONSTANTS[dtype])


def _result_numbers(results: list[Any]) -> tuple[Any, ...]:
    return tuple(None if r is None else [*_result_numbers(r)] if isinstance(r, list) else int(r) for r in results)
