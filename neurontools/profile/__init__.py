"""Profiles of training runs: the operators that workers executed on their NeuronCores, and the files of profiles.

This package does not import torch: reports and writers of other formats need only a `Profile`.
"""

from neurontools.profile.definitions import (
    Engine,
    GraphDefinition,
    OperatorDefinition,
    ProfileMetadata,
    ProfileState,
    SourceLine,
    SpanKind,
)
from neurontools.profile.profile import (
    Allocation,
    Block,
    ColumnTable,
    GraphExecution,
    GraphTotal,
    MemoryLevels,
    OperatorTotal,
    Profile,
    ProfileEvent,
    Span,
    SpanTotal,
    TrainingStep,
)
from neurontools.profile.reader import read_directory, read_profile

__all__ = [
    "Allocation",
    "Block",
    "ColumnTable",
    "Engine",
    "GraphDefinition",
    "GraphExecution",
    "GraphTotal",
    "MemoryLevels",
    "OperatorDefinition",
    "OperatorTotal",
    "Profile",
    "ProfileEvent",
    "ProfileMetadata",
    "ProfileState",
    "SourceLine",
    "Span",
    "SpanKind",
    "SpanTotal",
    "TrainingStep",
    "read_directory",
    "read_profile",
]
