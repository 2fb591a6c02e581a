"""Parts of torch_xla that the simulated runtime does not have: errors that name them and say what to use."""

from __future__ import annotations

from types import ModuleType

_ONE_PROCESS_A_CORE = "one process a NeuronCore (torchrun) with xm.all_reduce"
_INSTEAD = {
    "torch_xla.distributed.fsdp": "XlaFullyShardedDataParallel, or torch.nn.parallel.DistributedDataParallel",
    "torch_xla.distributed.spmd.xla_distribute": "the device name neuron (NEURONTOOLS_DEVICE=neuron)",
    "torch_xla.distributed.spmd": _ONE_PROCESS_A_CORE,
    "torch_xla.experimental.spmd_fully_sharded_data_parallel": "XlaFullyShardedDataParallel",
    "torch_xla.experimental.spmd": _ONE_PROCESS_A_CORE,
    "torch_xla.experimental.xla_sharding": _ONE_PROCESS_A_CORE,
    "torch_xla.experimental.custom_kernel": "torch.library operators with a CPU kernel instead of Pallas",
    "torch_xla.experimental.pjrt": "torch_xla.runtime",
    "torch_xla.eager_mode": "torch_xla.experimental.eager_mode",
    "torch_xla._internal": "torch_xla.runtime",
    "torch_xla._XLAC": "the Python functions of torch_xla.core.xla_model",
    "torch_xla.runtime.use_spmd": _ONE_PROCESS_A_CORE,
    "torch_xla.stablehlo": "torch.export on the CPU",
    "torch_xla.utils.dlpack": "tensor.cpu() and torch.utils.dlpack",
    "torch_xla.core.xla_builder": "torch.library operators with a CPU kernel",
    "torch_xla.core.xla_op_registry": "torch.library operators with a CPU kernel",
    "torch_xla.core.dynamo_bridge": 'torch.compile(backend="openxla")',
    "torch_xla.distributed.xla_dist": "torchrun",
    "torch_xla.experimental.tpu": "torch_xla.runtime",
    "torch_xla.experimental.distributed_checkpoint": "torch.distributed.checkpoint, or xm.save",
    "torch_xla.experimental": "the stable modules",
    "torch_neuronx.optimizers": "torch.optim",
    "torch_neuronx.distributed.fsdp_mics": "XlaFullyShardedDataParallel with sharding_groups",
    "torch_neuronx.distributed": "torch.distributed with torchrun",
    "torch_neuronx.xla_impl": "torch_xla.core.xla_model",
    "neuronx_distributed.pipeline": "tensor and data parallelism",
    "neuronx_distributed.trace": "model.to(device)",
    "neuronx_distributed.trainer": "parallel_layers and NeuronZero1Optimizer",
    "neuronx_distributed.lightning": "parallel_layers and NeuronZero1Optimizer in a loop of your own",
    "neuronx_distributed": "tensor and data parallelism of neuronx_distributed.parallel_layers",
}


MODULES = frozenset(
    (
        "torch_xla.core.dynamo_bridge",
        "torch_xla.core.xla_builder",
        "torch_xla.core.xla_op_registry",
        "torch_xla.distributed.spmd",
        "torch_xla.distributed.spmd.xla_sharding",
        "torch_xla.distributed.xla_dist",
        "torch_xla.experimental.custom_kernel",
        "torch_xla.experimental.distributed_checkpoint",
        "torch_xla.experimental.spmd_fully_sharded_data_parallel",
        "torch_xla.experimental.tpu",
        "torch_xla.experimental.xla_sharding",
        "torch_xla.stablehlo",
        "torch_xla.utils.dlpack",
        "torch_neuronx.distributed",
        "torch_neuronx.distributed.fsdp_mics",
        "torch_neuronx.optimizers",
        "neuronx_distributed.lightning",
        "neuronx_distributed.modules",
        "neuronx_distributed.pipeline",
        "neuronx_distributed.pipeline.model",
        "neuronx_distributed.quantization",
        "neuronx_distributed.trace",
        "neuronx_distributed.trainer",
    )
)
"""Modules of the originals that can be imported all the same: scripts import more than they use."""


class Missing:
    """Stands for something that is not there: it can be imported, and says its name and what to use when it is used."""

    __is_missing__ = True

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: object, **__: object) -> None:
        raise NotImplementedError(text_of(self._name))

    __call__ = __enter__ = __getitem__ = __iter__ = __mro_entries__ = _refuse

    def __exit__(self, *_: object) -> None:
        """Never entered."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):  # what Python asks of everything
            raise AttributeError(name)
        self._refuse()

    def __instancecheck__(self, instance: object) -> bool:
        """Nothing is one of what is not there."""
        return False

    def __repr__(self) -> str:
        return f"<{text_of(self._name)}>"


class MissingModule(ModuleType):
    """A module of which nothing is there."""

    def __getattr__(self, name: str) -> Missing:
        """Something of it."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")


def text_of(name: str) -> str:
    """The text of the error for a missing name."""
    instead = next((advice for prefix, advice in _INSTEAD.items() if name.startswith(prefix)), None)
    return f"{name} is not part of the simulated runtime" + (f"; use {instead}" if instead else "")
