"""A profile of a training run: what its workers did on their NeuronCores, operator by operator, and its files.

No torch: reports and writers of other formats are functions of a `Profile`.
"""

from neurontools.profile.definitions import Graph, Operator, Place
from neurontools.profile.directory import read_directory
from neurontools.profile.kinds import Engine, Kind
from neurontools.profile.metadata import Metadata, State
from neurontools.profile.profile import Event, Profile
from neurontools.profile.reader import read_profile
from neurontools.profile.rows import (
    Allocation,
    Block,
    Execution,
    GraphTotal,
    MemoryLevels,
    OperatorTotal,
    Span,
    SpanTotal,
    Step,
)
from neurontools.profile.table import Table

__all__ = [
    "Allocation",
    "Block",
    "Engine",
    "Event",
    "Execution",
    "Graph",
    "GraphTotal",
    "Kind",
    "MemoryLevels",
    "Metadata",
    "Operator",
    "OperatorTotal",
    "Place",
    "Profile",
    "Span",
    "SpanTotal",
    "State",
    "Step",
    "Table",
    "read_directory",
    "read_profile",
]
