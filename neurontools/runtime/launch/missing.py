"""Parts of torch_xla that the simulated runtime does not have: errors that name them and say what to use."""

from __future__ import annotations

_INSTEAD = {
    "torch_xla.distributed.fsdp": "torch.nn.parallel.DistributedDataParallel",
    "torch_xla.distributed.spmd": "one process a NeuronCore (torchrun) with xm.all_reduce",
    "torch_xla.distributed.zero_redundancy_optimizer": "torch.distributed.optim.ZeroRedundancyOptimizer",
    "torch_xla.experimental.xla_sharding": "one process a NeuronCore (torchrun) with xm.all_reduce",
    "torch_xla.experimental.custom_kernel": "torch.library operators with a CPU kernel instead of Pallas",
    "torch_xla.experimental.eager_mode": "NEURON_USE_EAGER_DEBUG_MODE=1",
    "torch_xla.experimental.pjrt": "torch_xla.runtime",
    "torch_xla.experimental": "the stable modules",
    "torch_xla.eager_mode": "NEURON_USE_EAGER_DEBUG_MODE=1",
    "torch_xla._internal": "torch_xla.runtime",
    "torch_xla._XLAC": "the Python functions of torch_xla.core.xla_model",
    "torch_xla.runtime.use_spmd": "one process a NeuronCore (torchrun) with xm.all_reduce",
    "torch_xla.stablehlo": "torch.export on the CPU",
    "torch_xla.debug.profiler": "torch.profiler, or neuron-top beside the script",
    "torch_xla.utils.dlpack": "tensor.cpu() and torch.utils.dlpack",
    "torch_xla.utils.serialization": "xm.save and torch.load",
    "torch_xla.utils.checkpoint": "torch.utils.checkpoint",
    "torch_xla.core.xla_builder": "torch.library operators with a CPU kernel",
    "torch_xla.core.dynamo_bridge": 'torch.compile(backend="openxla")',
    "torch_xla.core.xla_model.send": "torch.distributed.send",
    "torch_xla.core.xla_model.recv": "torch.distributed.recv",
    "torch_xla.core.xla_model.collective_permute": "torch.distributed.send and recv",
    "torch_neuronx.optimizers": "torch.optim",
    "torch_neuronx.distributed": "torch.distributed with torchrun",
    "torch_neuronx.xla_impl": "torch_xla.core.xla_model",
}


def text_of(name: str) -> str:
    """The text of the error for a missing name."""
    instead = next((advice for prefix, advice in _INSTEAD.items() if name.startswith(prefix)), None)
    return f"{name} is not part of the simulated runtime" + (f"; use {instead}" if instead else "")
