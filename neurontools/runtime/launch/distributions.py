"""The versions of torch_xla and torch_neuronx that our modules stand for, and the metadata of their distributions.

Lightning, transformers and others ask `importlib.metadata.version("torch_xla")` which API they may expect.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution

VERSIONS = {
    "torch_xla": "2.9.0+neurontools",
    "torch_neuronx": "2.9.0+neurontools",
    "neuronx_distributed": "0.15.0+neurontools",
}
"""The name a package is imported by, and its version: the API that it follows, and whose modules these are."""


class StandIn(Distribution):
    """What importlib.metadata tells of a package that our modules stand for."""

    def __init__(self, package: str) -> None:
        self._package = package

    def read_text(self, filename: str) -> str | None:
        """METADATA and top_level.txt; None for any other file."""
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: {self._package}\nVersion: {VERSIONS[self._package]}\n"
        return f"{self._package}\n" if filename == "top_level.txt" else None

    def locate_file(self, path: object) -> object:  # type: ignore[override]
        """Never asked: the distribution lists no files."""
        raise FileNotFoundError(f"{self._package} is part of neurontools and has no files of its own: {path}")


def stand_ins(name: str | None) -> Iterator[Distribution]:
    """The distributions that a name means, in any of its spellings; all for None."""
    wanted = None if name is None else name.lower().replace("-", "_").replace(".", "_")
    return (StandIn(package) for package in VERSIONS if wanted in (None, package))
