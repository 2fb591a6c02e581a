"""Tells the files of the user's script from those of Python, torch, other packages and this package."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import torch

_PACKAGE_DIRECTORIES = ("/site-packages/", "/dist-packages/")  # of any environment: torch may lie in another one
_PACKAGES = tuple({f"{path}{os.sep}" for name in ("purelib", "platlib") if (path := sysconfig.get_path(name))})
_LIBRARY = tuple({f"{path}{os.sep}" for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name))})
_OWN = f"{Path(__file__).parents[2]}{os.sep}"
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"

LOOP_PACKAGES = frozenset({"transformers", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric", "trl"})
"""Packages that run the training loop themselves, so that what they do in a step is not written in the script."""


def is_package(file: str) -> bool:
    """Returns whether a file belongs to an installed package."""
    return file.startswith(_PACKAGES) or any(directory in file for directory in _PACKAGE_DIRECTORIES)


def is_part_of_torch(file: str) -> bool:
    """Returns whether a file belongs to Python, torch or this package, whose lines no profile shows."""
    return file.startswith((_OWN, _TORCH, "<")) or (file.startswith(_LIBRARY) and not is_package(file))


def is_outside_script(file: str) -> bool:
    """Returns whether a file is neither the script nor a module of its own."""
    return is_package(file) or is_part_of_torch(file)


def loop_package(file: str, *, with_models: bool = True) -> str | None:
    """Returns the name of the package in `LOOP_PACKAGES` to which a file belongs; None if there is none.

    Without `with_models`, the result is also None for the models of transformers, which a loop of the script may call.
    """
    for directory in _PACKAGE_DIRECTORIES:
        _, found, rest = file.rpartition(directory)
        if found:
            name = rest.partition("/")[0]
            is_model = name == "transformers" and not rest.startswith("transformers/trainer")
            return name if name in LOOP_PACKAGES and (with_models or not is_model) else None
    return None
