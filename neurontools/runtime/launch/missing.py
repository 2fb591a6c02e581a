"""Parts of torch_xla that the simulated runtime does not have: errors that name them and say what to use."""

from __future__ import annotations

_ONE_PROCESS_A_CORE = "one process a NeuronCore (torchrun) with xm.all_reduce"
_INSTEAD = {
    "torch_xla.distributed.fsdp": "XlaFullyShardedDataParallel, or torch.nn.parallel.DistributedDataParallel",
    "torch_xla.distributed.spmd": _ONE_PROCESS_A_CORE,
    "torch_xla.experimental.spmd": _ONE_PROCESS_A_CORE,
    "torch_xla.experimental.xla_sharding": _ONE_PROCESS_A_CORE,
    "torch_xla.experimental.custom_kernel": "torch.library operators with a CPU kernel instead of Pallas",
    "torch_xla.experimental.pjrt": "torch_xla.runtime",
    "torch_xla.experimental": "the stable modules",
    "torch_xla.eager_mode": "torch_xla.experimental.eager_mode",
    "torch_xla._internal": "torch_xla.runtime",
    "torch_xla._XLAC": "the Python functions of torch_xla.core.xla_model",
    "torch_xla.runtime.use_spmd": _ONE_PROCESS_A_CORE,
    "torch_xla.stablehlo": "torch.export on the CPU",
    "torch_xla.debug.profiler": "torch.profiler, or neuron-top beside the script",
    "torch_xla.utils.dlpack": "tensor.cpu() and torch.utils.dlpack",
    "torch_xla.core.xla_builder": "torch.library operators with a CPU kernel",
    "torch_xla.core.dynamo_bridge": 'torch.compile(backend="openxla")',
    "torch_neuronx.optimizers": "torch.optim",
    "torch_neuronx.distributed": "torch.distributed with torchrun",
    "torch_neuronx.xla_impl": "torch_xla.core.xla_model",
    "neuronx_distributed.pipeline": "tensor and data parallelism",
    "neuronx_distributed.trace": "model.to(device)",
    "neuronx_distributed.trainer": "parallel_layers and NeuronZero1Optimizer",
    "neuronx_distributed.lightning": "parallel_layers and NeuronZero1Optimizer in a loop of your own",
    "neuronx_distributed": "tensor and data parallelism of neuronx_distributed.parallel_layers",
}


def text_of(name: str) -> str:
    """The text of the error for a missing name."""
    instead = next((advice for prefix, advice in _INSTEAD.items() if name.startswith(prefix)), None)
    return f"{name} is not part of the simulated runtime" + (f"; use {instead}" if instead else "")
