"""The definitions that the events of a profile refer to: kinds, engines, metadata, source lines, operators, graphs.

`engine_of` infers the engine of an operator from its name, following the guide to the engines in the Neuron
documentation. The tensor engine multiplies matrices. The vector engine processes the elements of two tensors and
reduces. The scalar engine computes functions of single elements. GpSimd gathers by index, draws random numbers and
moves elements. The compiler may choose another engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

WARM_UP_STEPS = 5
"""The number of steps after which a training has usually compiled all its graphs."""

DEVICE_TIME = "times are of the simulated device (CPU)"


class SpanKind(IntEnum):
    """The kind of an event. The numbers are part of the file format."""

    LAUNCH = 0
    """The host launches a graph: from the decision to execute it until the execution starts."""
    EXECUTION = 1
    """A core executes a graph."""
    OPERATOR = 2
    """One operator of an execution."""
    TO_DEVICE = 3
    """A copy from the host to HBM."""
    FROM_DEVICE = 4
    """A copy from HBM to the host, without the wait for a preceding execution."""
    COLLECTIVE = 5
    """A collective, including the wait for other ranks: an operator of a graph, or a collective of CPU tensors."""
    COMPILE = 6
    """A graph is compiled, or loaded from the compile cache, which is faster."""
    INPUT_WAIT = 7
    """The script waits for its data loader."""
    STEP = 8
    """A training step (`TrainingStep`)."""
    ANNOTATION = 9
    """A named section of the script: `torch_xla.debug.profiler.Trace`."""
    FALLBACK = 10
    """An operator that ran on the host because it can't be part of a graph."""


class Engine(IntEnum):
    """The engine of a NeuronCore that an operator keeps busy; inferred from its name, not from the compiler."""

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


class Phase(StrEnum):
    """The part of a training step to which an operator belongs."""

    FORWARD = "forward"  # includes the loss, and all operators outside the other phases
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COLLECTIVES = "collectives"


OPTIMIZER_SCOPE = ".step"
"""The end of an optimizer's name in the scope of its operators, such as AdamW.step."""

ALLOCATED, FREED = 0, 1
"""Values of `Allocation.action`."""

CATEGORIES = ("constants", "model_code", "shared_scratchpad", "runtime", "tensors")
"""Memory categories of HBM: indexed by `Allocation.category`, in the order of the fields of `MemoryLevels`."""


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
    """Returns the engine for an operator such as aten::addmm; the vector engine if no pattern matches."""
    namespace, _, rest = name.partition("::")
    if namespace == "neuron":
        return Engine.COLLECTIVES
    base = rest.partition(".")[0]
    for pattern, engine in ((_TENSOR, Engine.TENSOR), (_GPSIMD, Engine.GPSIMD), (_SCALAR, Engine.SCALAR)):
        if pattern.search(base):
            return engine
    return Engine.VECTOR


@dataclass(frozen=True, slots=True)
class ProfileMetadata:
    """The worker of a profile, and the clock of its times.

    Times are nanoseconds since 1970. The host's clock sets the start of the profile, and CLOCK_MONOTONIC advances it.
    Profiles of one boot of a host (`boot_id`) share these clocks. `cores` are host-wide indices of logical cores. A
    logical core has `logical_neuroncore_config` physical cores (None if unknown). `hbm_limit_bytes` is per logical
    core. `device_time` states what the device times measure.
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
    """The progress of a profile; the last state in a file is the valid one.

    `has_ended` is false if the worker died or still runs. `recorded` counts the recorded rows of each table, `dropped`
    the oldest rows that were dropped to bound the file. Totals include dropped rows. `hbm_peak_bytes` has one entry
    for each core of `ProfileMetadata.cores`.
    """

    ended_ns: int = 0
    has_ended: bool = False
    recorded: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    hbm_peak_bytes: tuple[int, ...] = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of Python source; `is_package` is true in installed packages, and false in the script and its modules."""

    file: str
    line: int
    function: str
    is_package: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def script_line(stack: tuple[SourceLine, ...]) -> SourceLine | None:
    """Returns the innermost line of a stack that belongs to the script.

    If no line belongs to the script, returns the innermost line. Returns None for an empty stack.
    """
    return next((line for line in stack if not line.is_package), stack[0] if stack else None)


PACKAGE_DIRECTORIES = ("/site-packages/", "/dist-packages/")  # of any environment: torch may lie in another one

LOOP_PACKAGES = frozenset({"transformers", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric", "trl"})
"""Packages that run the training loop themselves, so that what they do in a step is not written in the script."""


def loop_package(file: str, *, with_models: bool = True) -> str | None:
    """Returns the name of the package in `LOOP_PACKAGES` to which a file belongs; None if there is none.

    Without `with_models`, the result is also None for the models of transformers, which a loop of the script may call.
    """
    for directory in PACKAGE_DIRECTORIES:
        _, found, rest = file.rpartition(directory)
        if found:
            name = rest.partition("/")[0]
            is_model = name == "transformers" and not rest.startswith("transformers/trainer")
            return name if name in LOOP_PACKAGES and (with_models or not is_model) else None
    return None


def caller_package(stack: Sequence[SourceLine], *, with_models: bool = False) -> str | None:
    """Returns the loop package inside of the script's innermost line on a stack; None if there is none."""
    for line in stack:
        if not line.is_package:
            return None
        package = loop_package(line.file, with_models=with_models)
        if package is not None:
            return package
    return None


@dataclass(frozen=True, slots=True)
class OperatorDefinition:
    """An operator of a graph, at its position in the order of execution.

    `flops` and `bytes` (arguments and results) are per execution. `result` is the layout of the first result, such as
    bfloat16[64,512], or "". `stack` is an index of `Profile.stacks`, None if unknown; a backward operator has the stack
    of its forward operator. `scope` names the modules around the operator, outermost first, such as
    Bert/encoder/Linear, or the optimizer: AdamW.step. `compute_type` is the element type of the device's
    multiplications. `peers` are the ranks to which a collective sends data, and `sent_bytes` the bytes for each of them
    per execution (see `collective_traffic`); both are empty for other operators.
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
    peers: tuple[int, ...] = ()
    sent_bytes: tuple[int, ...] = ()

    @property
    def phase(self) -> Phase:
        if self.engine is Engine.COLLECTIVES:
            return Phase.COLLECTIVES
        if self.is_backward:
            return Phase.BACKWARD
        is_update = any(name.endswith(OPTIMIZER_SCOPE) for name in self.scope.split("/"))
        return Phase.OPTIMIZER if is_update else Phase.FORWARD


@dataclass(frozen=True, slots=True)
class GraphDefinition:
    """A graph that was loaded onto a core. `first_operator` is the index of its first operator in the profile.

    `hash_text` and `module` are its names in the compile cache. `compile_ns` is None if unknown. `was_cached` is true
    if the cache had the graph. `reason` states why the graph was compiled: "the first one", or the difference from the
    previous graph. `moved_bytes` is the size of inputs and outputs. `step` is the training step of its first execution.
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
