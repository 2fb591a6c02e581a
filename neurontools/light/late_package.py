"""A package whose own code runs when somebody asks it for a name, and not when one of its modules is imported.

The packages of this library that are a whole, as neurontools.model, import all their modules. A one-shot command that
needs one of them can't afford the others.
"""

from __future__ import annotations

import sys
from types import ModuleType

TYPE_CHECKING = False  # that of typing, without its import
if TYPE_CHECKING:
    from typing import Any


class _Late(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None  # noqa: S101  it was made with one
        assert self.__spec__.loader is not None  # noqa: S101
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def install(name: str) -> None:
    """Makes it one of those, unless it was imported before; its parent is imported."""
    if name in sys.modules:
        return
    above, _, own = name.rpartition(".")
    parent = sys.modules[above]
    for finder in sys.meta_path:
        spec = finder.find_spec(name, parent.__path__)
        if spec is not None and spec.submodule_search_locations is not None:
            package = _Late(name)
            package.__spec__, package.__loader__, package.__package__ = spec, spec.loader, name
            package.__path__ = spec.submodule_search_locations
            sys.modules[name] = package
            setattr(parent, own, package)
            return
