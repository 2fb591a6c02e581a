"""What events refer to: graphs, their operators, and places in the script."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.profile.kinds import Engine


@dataclass(frozen=True, slots=True)
class Place:
    """A line of Python; `is_package`: it belongs to an installed package, and not to the script and what it brings."""

    file: str
    line: int
    function: str
    is_package: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def script_place(stack: tuple[Place, ...]) -> Place | None:
    """The innermost place of a stack that is the script's own, else the innermost of all; None for an empty one."""
    return next((place for place in stack if not place.is_package), stack[0] if stack else None)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a graph, at its position in the order of execution.

    `flops` and `bytes` are of one execution; bytes are those of its arguments and results. `result` is the layout of
    its first result, such as bfloat16[64,512], "" for none. `stack` is a number of `Profile.stacks`, None where nobody
    knows who recorded it; of an operator of the backward pass it is that of the forward one. `scope` are the modules
    it was recorded in, outermost first, such as Bert/encoder/Linear. `compute_type` is the element type in which the
    device multiplies.
    """

    graph: int
    position: int
    name: str
    engine: Engine
    flops: int
    bytes: int
    result: str
    compute_type: str | None
    stack: int | None
    scope: str
    is_backward: bool


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph as it was loaded onto a core. Its operators are those from `first_operator` on, `operator_count` of them.

    `hash_text` and `module` are those of the compile cache. `compile_ns` is None where nobody measured it;
    `was_cached`: it was found in the cache. `reason` is why there had to be a graph of its own: "the first one", or
    what differs from the one before. `moved_bytes` are inputs and outputs. `step` is the one it first came in.
    """

    hash_text: str
    module: str
    first_operator: int
    operator_count: int
    flops: int
    moved_bytes: int
    code_bytes: int
    scratchpad_bytes: int
    compile_ns: int | None
    was_cached: bool | None
    reason: str
    stack: int | None
    step: int
