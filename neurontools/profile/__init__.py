"""Profiles of training runs: the operators that workers executed on their NeuronCores, and the files of profiles.

This package does not import torch: reports and writers of other formats need only a `Profile`.
"""

from neurontools.util.light_imports import lazy_names

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
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
        MemoryLevels,
        Profile,
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
    "MemoryLevels",
    "OperatorDefinition",
    "Profile",
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
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, __all__, "definitions", "profile", "reader")
