"""What is installed: this suite, what it needs, what it may use, and whose commands a shell finds."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import neurontools
from neurontools.cli.doctor.check import Check, Level, Place, size_bytes
from neurontools.runtime.launch.import_hook import SUPPORTED_TORCH
from neurontools.util.units import bytes_text
from neurontools.util.version import __version__

AREA = "installed"
COMMANDS = ("neurond", "neuron-ls", "neuron-top", "neuron-monitor", "neuron-healthcheck", "neuron-run")
OF_AWS = ("torch-neuronx", "torch-xla", "libneuronxla", "neuronx-cc", "neuronx-distributed", "jax-neuronx")
_RUNTIME = Path("/opt/aws/neuron/lib")
_MOST_HEAD_BYTES = 4096


def examine(place: Place) -> Iterator[Check]:
    """What is there, and what is missing."""
    where = Path(neurontools.__file__).parent
    yield Check(
        AREA,
        Level.OK,
        f"neurontools {__version__} in {where} ({bytes_text(size_bytes(str(where)))}), "
        f"Python {platform.python_version()} ({sys.executable})",
    )
    yield from _needed()
    yield from _optional()
    yield from _commands(place)
    libraries = sorted(path.name for path in _RUNTIME.glob("libnrt.so.*")) if _RUNTIME.is_dir() else []
    if libraries:
        yield Check(AREA, Level.OK, f"Neuron runtime: {', '.join(libraries[-3:])} in {_RUNTIME}")


def version_of(distribution: str) -> str | None:
    """The version that is installed, without importing it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def requirements() -> list[str]:
    """The packages that neurontools needs, by its own metadata; none where it runs from a checkout alone."""
    try:
        wanted = metadata.requires("neurontools") or []
    except metadata.PackageNotFoundError:
        return []
    return [re.split(r"[ <>=!~;\[(]", text, maxsplit=1)[0] for text in wanted if "extra ==" not in text]


def _needed() -> Iterator[Check]:
    found = {name: version_of(name) for name in requirements()}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        yield Check(AREA, Level.PROBLEM, f"not installed: {', '.join(missing)}", "pip install --upgrade neurontools")
    there = ", ".join(f"{name} {version}" for name, version in found.items() if version is not None)
    if there:
        yield Check(AREA, Level.OK, there)


def _optional() -> Iterator[Check]:
    torch = version_of("torch")
    if torch is None:
        yield Check(
            AREA, Level.NOTE, "torch is not installed; neuron-run needs it", "pip install 'neurontools[runtime]'"
        )
    elif torch.split(".")[:2] != SUPPORTED_TORCH.split("."):
        yield Check(
            AREA,
            Level.NOTE,
            f"torch {torch} is not the {SUPPORTED_TORCH} that neuron-run is made for",
            f"pip install 'torch=={SUPPORTED_TORCH}.*' where neuron-run is used",
        )
    else:
        yield Check(AREA, Level.OK, f"torch {torch}")
    of_aws = [f"{name} {version}" for name in OF_AWS if (version := version_of(name)) is not None]
    if of_aws:
        yield Check(AREA, Level.OK, f"of AWS: {', '.join(of_aws)}")


def _commands(place: Place) -> Iterator[Check]:
    """Whether a shell finds our commands, or others of the same name."""
    missing, others = [], []
    for name in COMMANDS:
        path = shutil.which(name, path=place.environment.get("PATH", ""))
        if path is None:
            missing.append(name)
        elif not _is_ours(path):
            others.append(path)
    if missing:
        own = Path(sys.executable).parent
        yield Check(AREA, Level.NOTE, f"not in PATH: {', '.join(missing)}", f'PATH="{own}:$PATH", or run them by path')
    if others:
        yield Check(
            AREA,
            Level.NOTE,
            f"in PATH, and of somebody else: {', '.join(others)}",
            "put the directory of ours before theirs in PATH, or run ours by path",
        )


def _is_ours(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            head = file.read(_MOST_HEAD_BYTES)
    except OSError:
        return True  # who can't be read is not accused
    return b"neurontools" in head or b"neurond" in head
