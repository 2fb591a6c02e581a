"""The Neuron devices of this host, read without a daemon."""

from __future__ import annotations

import os

from neurontools.cli.line.devices import DeviceSelection
from neurontools.cli.line.telling import tell
from neurontools.driver.environment import Roots
from neurontools.util import light_imports
from neurontools.util.errors import EXIT_NOT_FOUND, UserError

TYPE_CHECKING = False  # that of typing, without its import
if TYPE_CHECKING:
    from collections.abc import Mapping

    from neurontools.model import Device


def device_list(
    given: Mapping[str, str], selection: DeviceSelection | None, logical_neuroncore_config: int | None
) -> str | None:
    """What neuron-ls prints of them with these options; None where the driver shows none, UserError as its errors.

    What could not be read goes to a terminal on standard error alone: programs take any text there for a failure.
    """
    light_imports.install_dataclasses()
    from neurontools.driver.inventory import read_host_snapshot
    from neurontools.views.device_list import NoSuchDevice, device_list_json, device_list_table

    snapshot = read_host_snapshot(Roots.from_environment(os.environ))
    if snapshot is None:
        return None
    if os.isatty(2):
        for warning in snapshot.warnings:
            tell(f"neuron-ls: {warning}")
    all_processes = "show-all-procs" in given
    indices = [] if selection is None else [*selection.indices, *_resolved(selection, snapshot.devices)]
    try:
        if "json-output" in given:
            text = device_list_json(
                snapshot,
                all_processes=all_processes,
                logical_neuroncore_config=logical_neuroncore_config,
                device_indices=indices,
            )
        else:
            text = device_list_table(
                snapshot,
                wide="wide" in given,
                all_processes=all_processes,
                topology="topology" in given,
                logical_neuroncore_config=logical_neuroncore_config,
                device_indices=indices,
            )
    except NoSuchDevice as error:
        raise UserError(str(error), EXIT_NOT_FOUND) from None
    return text


def _resolved(selection: DeviceSelection, devices: tuple[Device, ...]) -> list[int]:
    """The indices of the devices that were given as PCI addresses."""
    index_of = {device.bdf: device.index for device in devices if device.bdf and "bdf" not in device.inferred_fields}
    for bdf in selection.bdfs:
        if bdf not in index_of:
            known = ", ".join(sorted(index_of)) or "none known; give an index"
            raise UserError(f"no device at {bdf} on this host; its PCI addresses: {known}", EXIT_NOT_FOUND)
    return [index_of[bdf] for bdf in selection.bdfs]
