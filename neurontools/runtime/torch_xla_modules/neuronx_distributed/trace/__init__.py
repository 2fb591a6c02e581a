"""neuronx_distributed.trace: models that several cores of this process execute together."""

from .trace import parallel_model_load as parallel_model_load
from .trace import parallel_model_save as parallel_model_save
from .trace import parallel_model_trace as parallel_model_trace
