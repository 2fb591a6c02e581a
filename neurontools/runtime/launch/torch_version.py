"""The version of torch that the device needs. Imports no torch, and little else, because neuron-run imports it."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from neurontools.runtime.reporting.stderr_lines import warn_once
from neurontools.util.errors import UserError
from neurontools.util.terminal import escape_controls

SUPPORTED_TORCH = "2.13"
"""The device uses private parts of torch, which may change in any minor version; pyproject.toml lists them."""


def require_torch() -> None:
    """Raises UserError if torch is not installed. Does not import torch."""
    if find_spec("torch") is None:
        raise UserError(
            f"PyTorch is not installed for {escape_controls(sys.executable)}; run pip install 'neurontools[runtime]'"
        )


def warn_of_other_torch(version: str) -> None:
    """Warns once if torch's minor version differs from the supported version. The device may still work."""
    if version.split(".")[:2] != SUPPORTED_TORCH.split("."):
        warn_once(
            "torch version",
            f"torch {version} is not the supported version {SUPPORTED_TORCH}; if something fails, "
            f"install torch=={SUPPORTED_TORCH}.*",
        )
