"""What an event of a profile is, and which engine of a NeuronCore an operator would keep busy."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
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
