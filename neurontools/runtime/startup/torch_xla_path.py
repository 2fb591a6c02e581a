"""What `neurontools.pth` loads when Python starts in a worker of torchrun: `import torch_xla` before `import torch`.

`import torch` makes our torch_xla available by its entry point, which is too late for a script that imports torch_xla
first. Nothing is loaded here but this module: the runtime comes when torch_xla is asked for and no real one is there.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class FirstImport:
    """Waits for the first import of torch_xla, torch_neuronx or neuronx_distributed that nobody else could answer."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of our package, by the finder that takes over from here."""
        if fullname not in ("torch_xla", "torch_neuronx", "neuronx_distributed"):
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
