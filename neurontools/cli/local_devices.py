"""Whether this host has Neuron devices of its own: the seam where reading them without a daemon comes in."""

from __future__ import annotations

import os

from neurontools.errors import EXIT_NO_DAEMON, UserError

_SIGNS = ("dev/neuron0", "sys/class/neuron_device/neuron0")


def has_devices(root: str = "/") -> bool:
    """Whether the Neuron driver shows a device under this root of the file system."""
    return any(os.path.exists(os.path.join(root, sign)) for sign in _SIGNS)  # noqa: PTH110, PTH118 - pathlib is slow


def read_devices() -> bytes:
    """What the devices say of themselves; UserError, because that is not there yet."""
    raise UserError(
        "this host has Neuron devices, but no monitor daemon answers and reading devices directly is not there yet; "
        "start neurond",
        EXIT_NO_DAEMON,
    )
