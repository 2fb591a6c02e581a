"""Converts snapshots to table rows, with the fields of `neuron-ls --query`.

    import pandas
    from neurontools import client, rows

    with client.connect() as daemon:
        cores = pandas.DataFrame(rows.cores(daemon.snapshot()))

Each row is a dict with the keys of `neuron-ls --query … --format json`; `neuron-ls --help-query` explains these keys.
The key of a quantity includes its unit. A value of None means unknown or not applicable.
"""

from __future__ import annotations

import os
from dataclasses import asdict

from neurontools import catalog
from neurontools.model import Snapshot
from neurontools.views.drawing.figures import Figures
from neurontools.views.query_fields import CORE_FIELDS, DEVICE_FIELDS, FieldValue
from neurontools.views.query_fields import query_rows as _rows
from neurontools.views.top_document import process_part

__all__ = ["cores", "devices", "scalars"]


def devices(snapshot: Snapshot) -> list[dict[str, FieldValue]]:
    """Returns one row per device, present or missing. `health` is None if the daemon derived no verdict."""
    return _rows_of(snapshot, None, of_cores=False)


def cores(snapshot: Snapshot, *, logical_neuroncore_config: int | None = None) -> list[dict[str, FieldValue]]:
    """Returns one row per logical NeuronCore, with its process and the fields of its device.

    A missing device has one row, in which `neuroncore_index` is None. The key `index` is the index of the
    device. `logical_neuroncore_config` (LNC) defaults to the host's.
    """
    return _rows_of(snapshot, logical_neuroncore_config, of_cores=True)


def scalars(snapshot: Snapshot, pid: int | None = None, *, prefix: str = "neuron/") -> dict[str, float]:
    """Returns the known numbers of a process by name, for TensorBoard's `add_scalar` or `wandb.log`.

    A name is `prefix` and the key of the process in `neuron-top --json`, which includes the unit. `pid` defaults to
    this process. Returns {} if the snapshot has no such process.
    """
    figures = Figures(snapshot).process_figures(os.getpid() if pid is None else pid)
    if figures is None:
        return {}
    part = process_part(figures, snapshot)
    found = {**asdict(part), **(asdict(part.training) if part.training is not None else {})}
    return {
        f"{prefix}{name}": float(value)
        for name, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in ("pid", "uid")
    }


def _rows_of(snapshot: Snapshot, lnc: int | None, *, of_cores: bool) -> list[dict[str, FieldValue]]:
    if lnc not in snapshot.instance.logical_neuroncore_configs:
        lnc = None
    fields = (*DEVICE_FIELDS, *CORE_FIELDS) if of_cores else DEVICE_FIELDS
    peak = catalog.peak_flops_per_core(snapshot.instance.instance_type)
    found = _rows(snapshot, peak, lnc, (), of_cores=of_cores)
    return [{field.json_name: field.read(row) for field in fields} for row in found]
