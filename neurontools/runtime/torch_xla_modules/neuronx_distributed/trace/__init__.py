"""neuronx_distributed.trace: models that several cores of this process execute together."""

from .model_builder import ModelBuilder as ModelBuilder
from .model_builder import NxDModel as NxDModel
from .model_builder import NxDParallelState as NxDParallelState
from .model_builder import shard_checkpoint as shard_checkpoint
from .trace import parallel_model_load as parallel_model_load
from .trace import parallel_model_save as parallel_model_save
from .trace import parallel_model_trace as parallel_model_trace
