"""Tells the files of the user's script from those of Python, torch, other packages and this package."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import torch

from neurontools.profile.definitions import PACKAGE_DIRECTORIES

_PACKAGES = tuple({f"{path}{os.sep}" for name in ("purelib", "platlib") if (path := sysconfig.get_path(name))})
_LIBRARY = tuple({f"{path}{os.sep}" for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name))})
_OWN = f"{Path(__file__).parents[2]}{os.sep}"
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"


def is_package(file: str) -> bool:
    """Returns whether a file belongs to an installed package."""
    return file.startswith(_PACKAGES) or any(directory in file for directory in PACKAGE_DIRECTORIES)


def is_part_of_torch(file: str) -> bool:
    """Returns whether a file belongs to Python, torch or this package, whose lines no profile shows."""
    return file.startswith((_OWN, _TORCH, "<")) or (file.startswith(_LIBRARY) and not is_package(file))


def is_outside_script(file: str) -> bool:
    """Returns whether a file is neither the script nor a module of its own."""
    return is_package(file) or is_part_of_torch(file)
