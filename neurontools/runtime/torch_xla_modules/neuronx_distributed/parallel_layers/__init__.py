"""neuronx_distributed.parallel_layers: layers whose weights are sharded among ranks."""

from ..utils import move_model_to_device as move_model_to_device
from . import layer_norm as layer_norm
from . import layers as layers
from . import pad as pad
from . import parallel_state as parallel_state
from .checkpointing import load as load
from .checkpointing import save as save
from .grads import clip_grad_norm as clip_grad_norm
from .layers import ColumnParallelLinear as ColumnParallelLinear
from .layers import ParallelEmbedding as ParallelEmbedding
from .layers import RowParallelLinear as RowParallelLinear
from .mappings import copy_to_tensor_model_parallel_region as copy_to_tensor_model_parallel_region
from .mappings import gather_from_tensor_model_parallel_region as gather_from_tensor_model_parallel_region
from .mappings import reduce_from_tensor_model_parallel_region as reduce_from_tensor_model_parallel_region
from .mappings import scatter_to_tensor_model_parallel_region as scatter_to_tensor_model_parallel_region
from .parallel_state import initialize_model_parallel as initialize_model_parallel
from .parallel_state import model_parallel_xla_manual_seed as model_parallel_xla_manual_seed
from .utils import split_tensor_along_last_dim as split_tensor_along_last_dim
