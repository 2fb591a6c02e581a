"""Changes to packages that few scripts import and that take long to import: made when a script imports them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_changes: dict[str, Callable[[Any], None]] = {}


class _Loader(Loader):
    """Loads a package as it is, then changes it."""

    def __init__(self, original: Any, change: Callable[[Any], None]) -> None:
        self._original = original
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the original."""
        made: ModuleType | None = self._original.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """As the original, and the change."""
        self._original.exec_module(module)
        self._change(module)


class _Finder(MetaPathFinder):
    """Finds the packages that are to be changed and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The package's own spec with our loader."""
        change = _changes.get(fullname)
        if change is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, change)
        return spec


def when_imported(package: str, change: Callable[[Any], None]) -> None:
    """Calls `change` with a package now, or right after it will have been imported; once a package."""
    loaded = sys.modules.get(package)
    if loaded is not None:
        change(loaded)
        return
    if not _changes:
        sys.meta_path.insert(0, _Finder())
    _changes[package] = change
