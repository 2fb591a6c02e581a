"""A model after tracing: its compiled graph, inputs and outputs, as a document that is saved beside its weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.execution.policy import ExecutionFailed
from neurontools.runtime.inference.recording import RecordedFunction
from neurontools.runtime.operators.layout import TensorLayout, layouts
from neurontools.runtime.programs.compiled_graph import CompiledGraph, InvalidCompiledGraph
from neurontools.runtime.programs.compiler import CompilerFlags, parse_compiler_flags

FORMAT = "neurontools-traced-1"
_LONGEST_NAME = 200
_LONGEST_WEIGHTS_ID = 16


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The shape, strides and type of an input, and the number of its value in the graph; None if the graph ignores it.

    An input with other strides is copied before an execution.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    number: int | None


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """An output: a view of the value `number` of the graph, or of the whole value."""

    number: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset: int


@dataclass(frozen=True, slots=True)
class TracedModel:
    """A compiled graph with fixed inputs and outputs.

    `names` and `numbers` have a name and a value number for each weight; the names of constants are empty. `states`
    maps the index of an output to the index of the weight that takes its value after each execution. Only the other
    outputs are returned. `weights_id` is a hash of the weights.
    """

    name: str
    compiled: CompiledGraph
    flags: CompilerFlags
    scalars: tuple[int | float | bool | complex, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[OutputSpec, ...]
    names: tuple[str, ...]
    numbers: tuple[int, ...]
    host_count: int
    states: dict[int, int]
    has_separate_weights: bool
    weights_id: str

    def to_json(self) -> bytes:
        """Returns the model as JSON, which `from_json` parses."""
        return json.dumps(
            {
                "format": FORMAT,
                "name": self.name,
                "compiled": json.loads(self.compiled.to_json()),
                "flags": self.flags.passed_on,
                "scalars": [_scalar_to_json(value) for value in self.scalars],
                "inputs": [[s.shape, s.stride, str(s.dtype), s.number] for s in self.inputs],
                "outputs": [[o.number, o.size, o.stride, str(o.dtype), o.offset] for o in self.outputs],
                "names": self.names,
                "numbers": self.numbers,
                "host_count": self.host_count,
                "states": [*self.states.items()],
                "has_separate_weights": self.has_separate_weights,
                "weights_id": self.weights_id,
                "narrowed": _narrowed_names(),
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_json(cls, data: bytes) -> TracedModel:
        """Parses the output of `to_json`. Raises ExecutionFailed for anything else, and for another torch version."""
        try:
            document = json.loads(data)
            if document["format"] != FORMAT:
                raise InvalidCompiledGraph(f"its format is {document['format']!r}, this version reads {FORMAT!r}")
            compiled = CompiledGraph.from_json(json.dumps(document["compiled"]).encode())
            if document["narrowed"] != _narrowed_names():
                raise InvalidCompiledGraph("XLA_USE_BF16 and XLA_DOWNCAST_BF16 had other values when it was traced")
            return cls(
                name=str(document["name"])[:_LONGEST_NAME],
                compiled=compiled,
                flags=parse_compiler_flags([str(flag) for flag in document["flags"]], "compiler_args"),
                scalars=tuple(_scalar_from_json(value) for value in document["scalars"]),
                inputs=tuple(
                    TensorSpec(
                        tuple(map(int, shape)),
                        tuple(map(int, stride)),
                        _dtype(dtype),
                        None if number is None else int(number),
                    )
                    for shape, stride, dtype, number in document["inputs"]
                ),
                outputs=tuple(
                    OutputSpec(int(number), tuple(map(int, size)), tuple(map(int, stride)), _dtype(dtype), int(offset))
                    for number, size, stride, dtype, offset in document["outputs"]
                ),
                names=tuple(map(str, document["names"])),
                numbers=tuple(map(int, document["numbers"])),
                host_count=int(document["host_count"]),
                states={int(output): int(weight) for output, weight in document["states"]},
                has_separate_weights=bool(document["has_separate_weights"]),
                weights_id=str(document["weights_id"])[:_LONGEST_WEIGHTS_ID],
            )
        except (InvalidCompiledGraph, KeyError, TypeError, AttributeError, ValueError) as error:
            raise ExecutionFailed(
                NrtStatus.UNSUPPORTED_NEFF_VERSION,
                f"this traced model can't be loaded ({error}); trace it again with this version",
            ) from None


def build_traced_model(
    recorded: RecordedFunction,
    compiled: CompiledGraph,
    flags: CompilerFlags,
    name: str,
    states: dict[int, str],
    *,
    has_separate_weights: bool,
) -> tuple[TracedModel, list[Tensor]]:
    """Returns a traced model, and its weights, constants and host tensors in the order of `numbers`.

    `states` maps the index of an output to the name of its weight.
    """
    names = [*recorded.weights, *([""] * len(recorded.constants))]
    weights = [recorded.weight_values[each] for each in recorded.weights]
    weights += [*recorded.constants.values(), *recorded.graph.hosts]
    needed = {*compiled.inputs} | {output.number for output in recorded.outputs}
    return TracedModel(
        name=name[:_LONGEST_NAME],
        compiled=compiled,
        flags=flags,
        scalars=tuple(recorded.graph.scalars),
        inputs=tuple(
            TensorSpec(layout.size, layout.stride, layout.dtype, number if number in needed else None)
            for number, layout in zip(recorded.inputs, recorded.input_layouts, strict=True)
        ),
        outputs=tuple(
            OutputSpec(o.number, o.layout.size, o.layout.stride, o.layout.dtype, o.offset) for o in recorded.outputs
        ),
        names=tuple("" if each in recorded.unsaved else each for each in names),
        numbers=(*recorded.weights.values(), *recorded.constants),
        host_count=len(recorded.graph.hosts),
        states={output: names.index(weight) for output, weight in states.items()},
        has_separate_weights=has_separate_weights,
        weights_id=weights_id(weights),
    ), weights


def weights_id(weights: Sequence[Tensor]) -> str:
    """Returns a hash of weights. Equal weights in the same order have the same hash."""
    digest = hashlib.blake2b(digest_size=_LONGEST_WEIGHTS_ID // 2)
    for value in weights:
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def layout_of(spec: TensorSpec | OutputSpec) -> TensorLayout:
    """Returns the layout of an input or output on the device."""
    if isinstance(spec, OutputSpec):
        return layouts.get(spec.size, spec.stride, spec.dtype)
    return layouts.get(spec.shape, spec.stride, spec.dtype)


def _narrowed_names() -> dict[str, str]:
    return {str(wide): str(narrow) for wide, narrow in layouts.narrowed.items()}


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"unknown type {name!r}")
    return found


def _scalar_to_json(value: Any) -> Any:
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    return {"float": value.hex()} if isinstance(value, float) else value


def _scalar_from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if "float" in value:
            return float.fromhex(value["float"])
        real, imaginary = value["complex"]
        return complex(float.fromhex(real), float.fromhex(imaginary))
    if not isinstance(value, (bool, int)):
        raise ValueError(f"unknown number {value!r}")
    return value
