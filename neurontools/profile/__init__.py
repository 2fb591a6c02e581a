"""Profiles of training runs: the operators that workers executed on their NeuronCores, and the files of profiles.

This package does not import torch: reports and writers of other formats need only a `Profile`.
"""

from neurontools.profile.definitions import Engine as Engine
from neurontools.profile.definitions import GraphDefinition as GraphDefinition
from neurontools.profile.definitions import OperatorDefinition as OperatorDefinition
from neurontools.profile.definitions import ProfileMetadata as ProfileMetadata
from neurontools.profile.definitions import ProfileState as ProfileState
from neurontools.profile.definitions import SourceLine as SourceLine
from neurontools.profile.definitions import SpanKind as SpanKind
from neurontools.profile.profile import Allocation as Allocation
from neurontools.profile.profile import Block as Block
from neurontools.profile.profile import ColumnTable as ColumnTable
from neurontools.profile.profile import GraphExecution as GraphExecution
from neurontools.profile.profile import GraphTotal as GraphTotal
from neurontools.profile.profile import MemoryLevels as MemoryLevels
from neurontools.profile.profile import OperatorTotal as OperatorTotal
from neurontools.profile.profile import Profile as Profile
from neurontools.profile.profile import Span as Span
from neurontools.profile.profile import SpanTotal as SpanTotal
from neurontools.profile.profile import TrainingStep as TrainingStep
from neurontools.profile.reader import read_directory as read_directory
from neurontools.profile.reader import read_profile as read_profile
