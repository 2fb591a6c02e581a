"""The runtime inside a training process: how it takes NeuronCores and reports what it does on them."""

from neurontools.util.light_imports import lazy_names

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from neurontools.runtime.reporting.granted_cores import Core
    from neurontools.runtime.reporting.kinds import ErrorKind, Outcome
    from neurontools.runtime.reporting.link import CoresUnavailable
    from neurontools.runtime.reporting.loaded_model import Execution, LoadedModel
    from neurontools.runtime.reporting.reporter import Reporter
    from neurontools.runtime.reporting.training_report import TrainingReport

__all__ = [
    "Core",
    "CoresUnavailable",
    "ErrorKind",
    "Execution",
    "LoadedModel",
    "Outcome",
    "Reporter",
    "TrainingReport",
]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        "reporting.reporter",
        "reporting.granted_cores",
        "reporting.kinds",
        "reporting.link",
        "reporting.loaded_model",
        "reporting.training_report",
    )
