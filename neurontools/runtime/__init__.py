"""The runtime inside a training process: how it takes NeuronCores and reports what it does on them."""

from neurontools.runtime.execution import Execution as Execution
from neurontools.runtime.execution import Model as Model
from neurontools.runtime.kinds import ErrorKind as ErrorKind
from neurontools.runtime.kinds import Outcome as Outcome
from neurontools.runtime.link import CoresUnavailable as CoresUnavailable
from neurontools.runtime.reporter import Core as Core
from neurontools.runtime.reporter import Reporter as Reporter
