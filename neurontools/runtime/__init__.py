"""The runtime inside a training process: it takes NeuronCores and reports their use."""

from neurontools.util.light_imports import lazy_names

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from neurontools.runtime.reporting.daemon_connection import Core, CoresUnavailable
    from neurontools.runtime.reporting.event_queue import Execution, LoadedModel
    from neurontools.runtime.reporting.inference_report import InferenceReport, RequestTimer, TokenTimer
    from neurontools.runtime.reporting.process_counters import ErrorKind, Outcome
    from neurontools.runtime.reporting.reporter import Reporter
    from neurontools.runtime.reporting.training_report import TrainingReport

__all__ = [
    "Core",
    "CoresUnavailable",
    "ErrorKind",
    "Execution",
    "InferenceReport",
    "LoadedModel",
    "Outcome",
    "Reporter",
    "RequestTimer",
    "TokenTimer",
    "TrainingReport",
]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        "reporting.reporter",
        "reporting.process_counters",
        "reporting.daemon_connection",
        "reporting.event_queue",
        "reporting.training_report",
        "reporting.inference_report",
    )
