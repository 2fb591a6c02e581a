"""Packages whose public names are loaded when they are first read (PEP 562).

Importing one module of such a package does not import the others: a one-shot command that needs `model.finding` pays
for nothing else.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def lazy_names(package: str, names: list[str], *modules: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package that exports these names of its modules.

    A name is read from the first module that has it.
    """

    def get(name: str) -> Any:
        if not name.startswith("__"):
            try:  # `from package import module` asks here for the module first
                return __import__(f"{package}.{name}", fromlist=["_"])
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
            for module in modules if name in names else ():
                loaded = __import__(f"{package}.{module}", fromlist=["_"])
                if hasattr(loaded, name):
                    return getattr(loaded, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: names
