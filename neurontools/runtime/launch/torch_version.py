"""Which torch the device is made for. It stands on private parts of torch, which any minor version may change."""

from __future__ import annotations

from neurontools.runtime.reporting.narration import say_once

MADE_FOR = "2.13"  # as in pyproject.toml, which names the private parts


def tell_of_another(version: str) -> None:
    """Says in a line, once, that this is another torch. The device is made all the same: it may well work."""
    if version.split(".")[:2] != MADE_FOR.split("."):
        say_once(
            "torch version",
            f"torch {version} is not the torch {MADE_FOR} that the device is made for; should something fail, "
            f"install torch=={MADE_FOR}.*",
        )
