"""The runtime inside a training process: how it takes NeuronCores and reports what it does on them."""

from neurontools.runtime.reporting.granted_cores import Core as Core
from neurontools.runtime.reporting.kinds import ErrorKind as ErrorKind
from neurontools.runtime.reporting.kinds import Outcome as Outcome
from neurontools.runtime.reporting.link import CoresUnavailable as CoresUnavailable
from neurontools.runtime.reporting.loaded_model import Execution as Execution
from neurontools.runtime.reporting.loaded_model import LoadedModel as LoadedModel
from neurontools.runtime.reporting.reporter import Reporter as Reporter
from neurontools.runtime.reporting.training_report import TrainingReport as TrainingReport
