"""The module that `neurontools.pth` loads when Python starts in a worker of torchrun.

It makes `import torch_xla` work before `import torch`, whose entry point would install the import hook too late. It
loads the runtime only when a script imports torch_xla and the real package is not installed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class FirstImport:
    """A finder for the first import of a package that has a stand-in; it installs the import hook."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of the imported package from TorchXlaFinder, which replaces this finder."""
        if fullname not in ("torch_xla", "torch_neuronx", "neuronx_distributed", "neuronperf"):
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        from neurontools.runtime.launch import import_hook

        import_hook.install_finder(os.environ)
        return import_hook.TorchXlaFinder().find_spec(fullname, path, target)


if os.environ.get("NEURONTOOLS_FORCE_TORCH_XLA") == "1":
    sys.meta_path.insert(0, FirstImport())
else:
    sys.meta_path.append(FirstImport())
