"""`import torch_xla` and `import torch_neuronx`: our modules, where the real ones are not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from neurontools.runtime.launch.missing import MODULES, MissingModule, text_of

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from importlib.metadata import Distribution, DistributionFinder

FORCE = "NEURONTOOLS_FORCE_TORCH_XLA"
PACKAGES = ("torch_xla", "torch_neuronx", "neuronx_distributed")
is_spawned_worker = False  # set in processes that multiprocessing spawns: they take cores only if they use them
is_installing = False  # set while the launcher makes the device: what `import torch` calls has nothing to do then
_DIRECTORY = str(Path(__file__).parents[1] / "torch_xla_modules")


class _MissingLoader(Loader):
    """Makes a module of which nothing is there, and which can be imported."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module."""
        return MissingModule(spec.name, text_of(spec.name))

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
        if found is None and fullname in MODULES:
            return ModuleSpec(fullname, _MissingLoader(), is_package=True)
        if found is None:
            raise ModuleNotFoundError(f"{text_of(fullname)}; there are {', '.join(_offered(package))}", name=fullname)
        return found

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        """What importlib.metadata tells of our packages; of a real one it finds that before, as its modules."""
        from neurontools.runtime.launch.distributions import stand_ins

        return stand_ins(context.name)


def install(environment: Mapping[str, str]) -> None:
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
