"""`import torch_xla` and `import torch_neuronx`: the import hook, and the names that are not supported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution
from pathlib import Path
from types import ModuleType

from neurontools.runtime.reporting.narration import say_once

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from importlib.metadata import DistributionFinder


FORCE = "NEURONTOOLS_FORCE_TORCH_XLA"
PACKAGES = ("torch_xla", "torch_neuronx", "neuronx_distributed")
is_spawned_worker = False  # set in processes that multiprocessing spawns: they take cores only if they use them
is_installing = False  # set while the launcher makes the device: what `import torch` calls has nothing to do then
_DIRECTORY = str(Path(__file__).parents[1] / "torch_xla_modules")


class _MissingLoader(Loader):
    """Makes a module of which nothing is there, and which can be imported."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module."""
        return UnsupportedModule(spec.name, unsupported_message(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute."""


class TorchXlaFinder(MetaPathFinder):
    """Finds our packages. It stands last, so that a real torch_xla wins, or first where it is forced."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of our module; ModuleNotFoundError that says so for a part of torch_xla that is not there."""
        package, _, rest = fullname.partition(".")
        if package not in PACKAGES:
            return None
        if not rest:
            return PathFinder.find_spec(fullname, [_DIRECTORY], target)
        ours = sys.modules.get(package)
        if ours is None or not str(getattr(ours, "__file__", "")).startswith(_DIRECTORY):
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is None and fullname in IMPORTABLE_MODULES:
            return ModuleSpec(fullname, _MissingLoader(), is_package=True)
        if found is None:
            raise ModuleNotFoundError(
                f"{unsupported_message(fullname)}; there are {', '.join(_offered(package))}", name=fullname
            )
        return found

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        """What importlib.metadata tells of our packages; of a real one it finds that before, as its modules."""

        return find_stand_ins(context.name)


def install_finder(environment: Mapping[str, str]) -> None:
    """Makes `import torch_xla` find our modules; NEURONTOOLS_FORCE_TORCH_XLA=1 even before a real one."""
    if any(isinstance(finder, TorchXlaFinder) for finder in sys.meta_path):
        return
    if environment.get(FORCE) == "1":
        sys.meta_path.insert(0, TorchXlaFinder())
    else:
        sys.meta_path.append(TorchXlaFinder())


def _offered(package: str) -> list[str]:
    root = Path(_DIRECTORY)
    files = sorted((root / package).rglob("*.py"))
    names = (".".join(file.relative_to(root).with_suffix("").parts) for file in files)
    return [name for name in names if not name.endswith("__init__") and "._" not in name] or [package]


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


IMPORTABLE_MODULES = frozenset(
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


class UnsupportedName:
    """Stands for something that is not there: it can be imported, and says its name and what to use when it is used."""

    __is_missing__ = True

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: object, **__: object) -> None:
        raise NotImplementedError(unsupported_message(self._name))

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
        return f"<{unsupported_message(self._name)}>"


class UnsupportedModule(ModuleType):
    """A module of which nothing is there."""

    def __getattr__(self, name: str) -> UnsupportedName:
        """Something of it."""
        if name.startswith("__"):
            raise AttributeError(name)
        return UnsupportedName(f"{self.__name__}.{name}")


def unsupported_message(name: str) -> str:
    """The text of the error for a missing name."""
    instead = next((advice for prefix, advice in _INSTEAD.items() if name.startswith(prefix)), None)
    return f"{name} is not part of the simulated runtime" + (f"; use {instead}" if instead else "")


VERSIONS = {
    "torch_xla": "2.9.0+neurontools",
    "torch_neuronx": "2.9.0+neurontools",
    "neuronx_distributed": "0.15.0+neurontools",
}
"""The name a package is imported by, and its version: the API that it follows, and whose modules these are."""


class StandInDistribution(Distribution):
    """What importlib.metadata tells of a package that our modules stand for."""

    def __init__(self, package: str) -> None:
        self._package = package

    def read_text(self, filename: str) -> str | None:
        """METADATA and top_level.txt; None for any other file."""
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: {self._package}\nVersion: {VERSIONS[self._package]}\n"
        return f"{self._package}\n" if filename == "top_level.txt" else None

    def locate_file(self, path: object) -> object:  # type: ignore[override]
        """Never asked: the distribution lists no files."""
        raise FileNotFoundError(f"{self._package} is part of neurontools and has no files of its own: {path}")


def find_stand_ins(name: str | None) -> Iterator[Distribution]:
    """The distributions that a name means, in any of its spellings; all for None."""
    wanted = None if name is None else name.lower().replace("-", "_").replace(".", "_")
    return (StandInDistribution(package) for package in VERSIONS if wanted in (None, package))


SUPPORTED_TORCH = "2.13"  # as in pyproject.toml, which names the private parts


def warn_of_other_torch(version: str) -> None:
    """Says in a line, once, that this is another torch. The device is made all the same: it may well work."""
    if version.split(".")[:2] != SUPPORTED_TORCH.split("."):
        say_once(
            "torch version",
            f"torch {version} is not the torch {SUPPORTED_TORCH} that the device is made for; should something fail, "
            f"install torch=={SUPPORTED_TORCH}.*",
        )
