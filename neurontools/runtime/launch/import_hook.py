"""The import hook that provides stand-ins for packages of the Neuron SDK, such as torch_xla and torch_neuronx.

Scripts can import unsupported names of these packages, but not use them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import FileFinder, ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, ModuleType

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from importlib.metadata import DistributionFinder

FORCE = "NEURONTOOLS_FORCE_TORCH_XLA"
VERSIONS = {
    "torch_xla": "2.9.0+neurontools",
    "torch_neuronx": "2.9.0+neurontools",
    "neuronx_distributed": "0.15.0+neurontools",
    "libneuronxla": "2.2.0+neurontools",
    "neuronperf": "1.8.0+neurontools",
}
"""The version of each package: the API version that it follows, and a suffix.

Lightning, transformers and others choose their API calls by `importlib.metadata.version("torch_xla")`.
"""
is_spawned_worker = False
"""True in processes that multiprocessing spawns, which take NeuronCores at their first use of the device."""
is_installing = False
"""Set while install_runtime imports torch, so that torch's entry point leaves the device to it."""
_DIRECTORY = str(Path(__file__).parents[1] / "torch_xla_modules")

_NKI = (
    "the operator of torch that the kernel replaces, such as scaled_dot_product_attention; NKI kernels do not run here"
)
_ONE_PROCESS_PER_CORE = "one process per NeuronCore (torchrun) with xm.all_reduce"
_ALTERNATIVES = {
    "torch_xla.distributed.fsdp": "XlaFullyShardedDataParallel, or torch.nn.parallel.DistributedDataParallel",
    "torch_xla.distributed.spmd.xla_distribute": "the device name neuron (NEURONTOOLS_DEVICE=neuron)",
    "torch_xla.distributed.spmd": _ONE_PROCESS_PER_CORE,
    "torch_xla.experimental.spmd_fully_sharded_data_parallel": "XlaFullyShardedDataParallel",
    "torch_xla.experimental.spmd": _ONE_PROCESS_PER_CORE,
    "torch_xla.experimental.xla_sharding": _ONE_PROCESS_PER_CORE,
    "torch_xla.experimental.custom_kernel": "torch.library operators with a CPU kernel instead of Pallas",
    "torch_xla.experimental.pjrt": "torch_xla.runtime",
    "torch_xla.eager_mode": "torch_xla.experimental.eager_mode",
    "torch_xla._internal": "torch_xla.runtime",
    "torch_xla._XLAC": "the Python functions of torch_xla.core.xla_model",
    "torch_xla.runtime.use_spmd": _ONE_PROCESS_PER_CORE,
    "torch_xla.stablehlo": "torch.export on the CPU",
    "torch_xla.utils.dlpack": "tensor.cpu() and torch.utils.dlpack",
    "torch_xla.core.xla_builder": "torch.library operators with a CPU kernel",
    "torch_xla.core.xla_op_registry": "torch.library operators with a CPU kernel",
    "torch_xla.core.dynamo_bridge": 'torch.compile(backend="openxla")',
    "torch_xla.distributed.xla_dist": "torchrun",
    "torch_xla.experimental.tpu": "torch_xla.runtime",
    "torch_xla.experimental.distributed_checkpoint": "torch.distributed.checkpoint, or xm.save",
    "torch_xla.experimental": "the stable modules",
    "torch_neuronx.nki": _NKI,
    "torch_neuronx.wrap_nki": _NKI,
    "torch_neuronx.xla_impl.ops.nki_jit": _NKI,
    "torch_neuronx.xla_impl.custom_op": "torch.library operators with a CPU kernel",
    "torch_neuronx.optimizers": "torch.optim",
    "torch_neuronx.distributed.fsdp_mics": "XlaFullyShardedDataParallel with sharding_groups",
    "torch_neuronx.distributed": "torch.distributed with torchrun",
    "torch_neuronx.xla_impl": "torch_xla.core.xla_model",
    "neuronx_distributed.pipeline": "tensor and data parallelism",
    "neuronx_distributed.trace": "neuronx_distributed.ModelBuilder(model), or trace.parallel_model_trace",
    "neuronx_distributed.trainer": "parallel_layers and NeuronZero1Optimizer",
    "neuronx_distributed.lightning": "parallel_layers and NeuronZero1Optimizer in a loop of your own",
    "neuronx_distributed": "tensor and data parallelism of neuronx_distributed.parallel_layers",
}
REFUSED_PACKAGES = {
    "nki": _NKI,
    "neuronxcc": _NKI,
    "torch_neuron": "torch_neuronx.trace",
    "optimum": "torch_neuronx.trace or transformers on the device instead of optimum.neuron, or install optimum",
    "transformers_neuronx": "transformers on the device, or torch_neuronx.trace",
    "neuronx_distributed_inference": "transformers' generate on the device, or torch_neuronx.trace",
}
"""Packages of the Neuron SDK that have no stand-in. Importing one raises an error with the replacement."""
_FRAMES_OF_A_SEARCH = 4  # Python's own frames between a finder and importlib.util.find_spec, and some to spare
_ALIASES = {
    "torch_xla._internal.tpu": "torch_xla._internal",
    "torch_xla.amp.syncfree.adam": "torch_xla.amp.syncfree",
    "torch_xla.amp.syncfree.adamw": "torch_xla.amp.syncfree",
    "torch_xla.amp.syncfree.sgd": "torch_xla.amp.syncfree",
    "torch_xla.core.xla_env_vars": "torch_xla.core",
    "torch_xla.distributed.fsdp.state_dict_utils": "torch_xla.distributed.fsdp",
    "torch_xla.distributed.fsdp.utils": "torch_xla.distributed.fsdp",
    "torch_xla.distributed.fsdp.wrap": "torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel",
    "torch_xla.experimental.eager": "torch_xla.experimental",
    "torch_xla.experimental.pjrt_backend": "torch_xla.distributed.xla_backend",
    "torch_xla.experimental.scan_layers": "torch_xla.experimental.scan",
    "torch_xla.test.test_utils": "torch_xla.test",
    "torch_xla.utils.utils": "torch_xla.utils",
    "torch_neuronx.xla_impl.ops": "torch_neuronx.xla_impl",
    "torch_neuronx.experimental.placement": "torch_neuronx.experimental",
    "neuronx_distributed.parallel_layers.random": "neuronx_distributed.parallel_layers.parallel_state",
    "neuronx_distributed.utils.model_utils": "neuronx_distributed.utils",
}
"""Second import paths of stand-in modules."""
IMPORTABLE_MODULES = {
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
    "torch_neuronx.xla_impl.custom_op",
    "neuronx_distributed.lightning",
    "neuronx_distributed.modules",
    "neuronx_distributed.pipeline",
    "neuronx_distributed.pipeline.model",
    "neuronx_distributed.quantization",
    "neuronx_distributed.trainer",
}
"""Unsupported modules that scripts can import, because scripts import more modules than they use."""


class UnsupportedName:
    """A placeholder for an unsupported name. Importing it works; using it raises NotImplementedError."""

    __is_missing__ = True

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: object, **__: object) -> None:
        raise NotImplementedError(unsupported_message(self._name))

    __call__ = __enter__ = __getitem__ = __iter__ = __mro_entries__ = _refuse

    def __exit__(self, *_: object) -> None:
        """Never runs, because `__enter__` always raises. A context manager must have this method."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):  # Python itself looks up special names; that is not a use by the script
            raise AttributeError(name)
        self._refuse()

    def __instancecheck__(self, instance: object) -> bool:
        """Returns False, so that `isinstance(x, UnsupportedClass)` works in scripts."""
        return False

    def __repr__(self) -> str:
        return f"<{unsupported_message(self._name)}>"


class UnsupportedModule(ModuleType):
    """A placeholder for an unsupported module. All its attributes are UnsupportedName objects."""

    def __getattr__(self, name: str) -> UnsupportedName:
        if name.startswith("__"):
            raise AttributeError(name)
        return UnsupportedName(f"{self.__name__}.{name}")


def unsupported_message(name: str) -> str:
    """Returns the error text for an unsupported name. The text suggests a replacement if there is one."""
    instead = next((advice for prefix, advice in _ALTERNATIVES.items() if name.startswith(prefix)), None)
    return f"{name} is not part of the simulated runtime" + (f"; use {instead}" if instead else "")


class _UnsupportedModuleLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return UnsupportedModule(spec.name, unsupported_message(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        pass


def _refuse_unsupported(module: ModuleType) -> None:
    """Adds a `__getattr__` that raises an error for unsupported attributes."""
    package = module.__name__

    def refuse(name: str) -> object:
        raise AttributeError(unsupported_message(f"{package}.{name}"))

    vars(module)["__getattr__"] = refuse


class _AliasLoader(Loader):
    """Loads an alias: copies the public names of the module under its first path."""

    def exec_module(self, module: ModuleType) -> None:
        _refuse_unsupported(module)
        origin = importlib.import_module(_ALIASES[module.__name__])
        vars(module).update((name, value) for name, value in vars(origin).items() if not name.startswith("_"))


class _StandInLoader(SourceFileLoader):
    """Loads a stand-in module that refuses unsupported attributes."""

    def exec_module(self, module: ModuleType) -> None:
        _refuse_unsupported(module)  # before the module's code, which may define another `__getattr__`
        super().exec_module(module)


def _file_finder(path: str) -> FileFinder:
    """A hook for `sys.path_hooks`, through which PathFinder loads stand-in modules with _StandInLoader."""
    if not path.startswith(_DIRECTORY):
        raise ImportError(path)
    return FileFinder(path, (_StandInLoader, [".py"]))


class TorchXlaFinder(MetaPathFinder):
    """Finds neurontools' stand-ins for packages of the Neuron SDK.

    It is the last finder, so an installed torch_xla takes precedence. NEURONTOOLS_FORCE_TORCH_XLA=1 makes it the first.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of a stand-in module, or None for any other package.

        Raises ModuleNotFoundError if a stand-in package has no such module.
        """
        package, _, rest = fullname.partition(".")
        if fullname in REFUSED_PACKAGES and not _is_availability_check():
            if PathFinder.find_spec(fullname) is not None:
                return None
            message = f"{fullname} is not part of the simulated runtime; use {REFUSED_PACKAGES[fullname]}"
            raise ModuleNotFoundError(message, name=fullname)
        if package not in VERSIONS:
            return None
        if rest:
            loaded = sys.modules.get(package)
            if loaded is None or not str(getattr(loaded, "__file__", "")).startswith(_DIRECTORY):
                return None
        found = PathFinder.find_spec(fullname, path if rest else [_DIRECTORY], target)
        if found is not None:
            return found
        if fullname in _ALIASES:
            return ModuleSpec(fullname, _AliasLoader())
        if fullname in IMPORTABLE_MODULES:
            return ModuleSpec(fullname, _UnsupportedModuleLoader(), is_package=True)
        supported = ", ".join(_supported_modules(package))
        raise ModuleNotFoundError(f"{unsupported_message(fullname)}; there are {supported}", name=fullname)

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        """Returns the metadata of the stand-in packages that importlib.metadata asks for."""
        normalized = None if context.name is None else context.name.lower().replace("-", "_").replace(".", "_")
        return (StandInDistribution(package) for package in VERSIONS if normalized in (None, package))


class StandInDistribution(Distribution):
    """The metadata of one stand-in package, for importlib.metadata."""

    def __init__(self, package: str) -> None:
        self._package = package

    def read_text(self, filename: str) -> str | None:
        """Returns the text of METADATA or top_level.txt; None for any other file."""
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: {self._package}\nVersion: {VERSIONS[self._package]}\n"
        return f"{self._package}\n" if filename == "top_level.txt" else None

    def locate_file(self, path: object) -> object:  # type: ignore[override]
        """Raises FileNotFoundError, because a stand-in package lists no files."""
        raise FileNotFoundError(f"{self._package} is part of neurontools and has no files of its own: {path}")


def _is_availability_check() -> bool:
    """Returns whether importlib.util.find_spec is the caller: libraries ask it whether a package is installed."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES_OF_A_SEARCH):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == "importlib.util":
            return True
        frame = frame.f_back
    return False


def install_finder(environment: Mapping[str, str]) -> None:
    """Adds the import hook to `sys.meta_path`. A second call does nothing."""
    if any(isinstance(finder, TorchXlaFinder) for finder in sys.meta_path):
        return
    sys.path_hooks.insert(0, _file_finder)
    if environment.get(FORCE) == "1":
        sys.meta_path.insert(0, TorchXlaFinder())
    else:
        sys.meta_path.append(TorchXlaFinder())


def is_stand_in(package: str) -> bool:
    """Returns whether an import of `package` gives the stand-in, not an installed package. Needs `install_finder`."""
    loaded = sys.modules.get(package)
    spec = find_spec(package) if loaded is None else loaded.__spec__
    return spec is not None and str(spec.origin).startswith(_DIRECTORY)


def _supported_modules(package: str) -> list[str]:
    root = Path(_DIRECTORY)
    files = sorted((root / package).rglob("*.py"))
    names = (".".join(file.relative_to(root).with_suffix("").parts) for file in files)
    aliases = (name for name in _ALIASES if name.startswith(f"{package}."))
    return sorted(name for name in (*names, *aliases) if "._" not in name and not name.endswith("__init__")) or [
        package
    ]
