"""What events refer to: graphs, their operators, and places in the script."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum


class SpanKind(IntEnum):
    """What an event is. The numbers are those of the file."""

    LAUNCH = 0
    """The host hands a graph to a core: from the decision to execute it until the execution begins."""
    EXECUTION = 1
    """A core executes a graph."""
    OPERATOR = 2
    """One operator of an execution."""
    TO_DEVICE = 3
    """Bytes go from the host into HBM."""
    FROM_DEVICE = 4
    """Bytes go from HBM to the host; without the execution that had to come before."""
    COLLECTIVE = 5
    """A collective, with the wait for the other ranks: an operator of a graph, or one of CPU tensors."""
    COMPILE = 6
    """A graph is compiled or, faster, found in the compile cache."""
    INPUT_WAIT = 7
    """The script waits for its data loader."""
    STEP = 8
    """A training step, as `Step` has it."""
    ANNOTATION = 9
    """A part of the script under a name, as `torch_xla.debug.profiler.Trace` gives it."""
    FALLBACK = 10
    """An operator that ran on the host because no graph could hold it."""


class Engine(IntEnum):
    """The engine of a NeuronCore that an operator would keep busy: inferred from its name, not told by the compiler."""

    TENSOR = 0
    VECTOR = 1
    SCALAR = 2
    GPSIMD = 3
    COLLECTIVES = 4


ENGINE_NAMES = {
    Engine.TENSOR: "tensor",
    Engine.VECTOR: "vector",
    Engine.SCALAR: "scalar",
    Engine.GPSIMD: "gpsimd",
    Engine.COLLECTIVES: "collectives",
}

ALLOCATED, FREED = 0, 1
"""`Allocation.action`."""

CATEGORIES = ("constants", "model_code", "shared_scratchpad", "runtime", "tensors")
"""What bytes of HBM are for, by `Allocation.category`; in the order of `MemoryLevels`."""


_TENSOR = re.compile(
    r"(^|_)(mm|bmm|matmul|addmm|addmv|addbmm|baddbmm|mv|dot|vdot|addr|linear|convolution|conv\dd|"
    r"scaled_dot_product.*|lstm|gru|rnn|mkldnn_rnn_layer|einsum)(_|$)"
)
_SCALAR = re.compile(
    r"(^|_)(exp|exp2|expm1|log|log2|log10|log1p|sqrt|rsqrt|sigmoid|tanh|gelu|silu|mish|relu6?|elu|selu|celu|softplus|"
    r"erf|erfc|sin|cos|tan|asin|acos|atan|sinh|cosh|softmax|log_softmax|hardtanh|hardswish|hardsigmoid|leaky_relu|"
    r"reciprocal|pow|abs|neg|sign|to_copy|copy)(_|$)"
)
_GPSIMD = re.compile(
    r"(^|_)(index|gather|scatter|embedding|select|take|put|sort|argsort|topk|unique|nonzero|masked|where|arange|range|"
    r"random|rand|randn|randint|randperm|bernoulli|normal|uniform|dropout|multinomial|cat|stack|split|flip|roll|pad|"
    r"tril|triu|repeat|one_hot|bincount|histc|searchsorted|bucketize)(_|$)"
)


def engine_of(name: str) -> Engine:
    """The engine for an operator such as aten::addmm; the vector engine for what nothing else is known of."""
    namespace, _, rest = name.partition("::")
    if namespace == "neuron":
        return Engine.COLLECTIVES
    base = rest.partition(".")[0]
    for pattern, engine in ((_TENSOR, Engine.TENSOR), (_GPSIMD, Engine.GPSIMD), (_SCALAR, Engine.SCALAR)):
        if pattern.search(base):
            return engine
    return Engine.VECTOR


DEVICE_TIME = "times are of the simulated device (CPU)"


@dataclass(frozen=True, slots=True)
class ProfileMetadata:
    """The worker that a profile is of.

    Times of a profile are nanoseconds since 1970 by the host's clock when the profile began, going on with
    CLOCK_MONOTONIC: workers of one host (one `boot_id`) can be laid side by side exactly.
    `cores` are numbers on the host, of logical cores that are so many physical ones each as
    `logical_neuroncore_config` says (None: unknown); `hbm_limit_bytes` is that of one core. `device_time` says of what
    device times are.
    """

    worker: str
    rank: int
    local_rank: int
    world_size: int
    pid: int
    host: str
    boot_id: str
    instance_type: str | None
    cores: tuple[int, ...]
    device_name: str
    hbm_limit_bytes: int | None
    began_ns: int
    script: str = ""
    torch_version: str = ""
    written_by: str = ""
    device_time: str = DEVICE_TIME
    logical_neuroncore_config: int | None = None


@dataclass(frozen=True, slots=True)
class ProfileState:
    """How far a profile came; the last one in a file holds.

    `has_ended`: the worker ended its profile; else it died, or runs still. `recorded` counts the rows by table that
    there were, `dropped` those that a bounded profile let go of, oldest first. Totals have all of them.
    `hbm_peak_bytes` is by core, as in `Metadata.cores`.
    """

    ended_ns: int = 0
    has_ended: bool = False
    recorded: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    hbm_peak_bytes: tuple[int, ...] = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of Python; `is_package`: it belongs to an installed package, and not to the script and what it brings."""

    file: str
    line: int
    function: str
    is_package: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def script_line(stack: tuple[SourceLine, ...]) -> SourceLine | None:
    """The innermost place of a stack that is the script's own, else the innermost of all; None for an empty one."""
    return next((place for place in stack if not place.is_package), stack[0] if stack else None)


@dataclass(frozen=True, slots=True)
class OperatorDefinition:
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
class GraphDefinition:
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
