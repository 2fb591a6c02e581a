"""Snapshots as rows for tables: what `neuron-ls --query` asks, for programs.

    import pandas
    from neurontools import client, rows

    with client.connect() as daemon:
        cores = pandas.DataFrame(rows.cores(daemon.snapshot()))

A row is a dict whose keys are those of `neuron-ls --query … --format json`, which `neuron-ls --help-query` explains;
quantities carry their unit in the key. None is unknown, or not there.
"""

from __future__ import annotations

from neurontools import catalog
from neurontools.model import Snapshot
from neurontools.views.query_fields import CORE_FIELDS, DEVICE_FIELDS, FieldValue
from neurontools.views.query_fields import query_rows as _rows

__all__ = ["cores", "devices"]


def devices(snapshot: Snapshot) -> list[dict[str, FieldValue]]:
    """A row for each device; `health` is the daemon's verdict, None where it made none."""
    return _made(snapshot, None, of_cores=False)


def cores(snapshot: Snapshot, *, logical_neuroncore_config: int | None = None) -> list[dict[str, FieldValue]]:
    """A row for each logical NeuronCore, with the process that holds it and the fields of its device.

    Cores are those of the host's default LNC unless another one is given; `index` is that of the device.
    """
    return _made(snapshot, logical_neuroncore_config, of_cores=True)


def _made(snapshot: Snapshot, lnc: int | None, *, of_cores: bool) -> list[dict[str, FieldValue]]:
    if lnc not in snapshot.instance.logical_neuroncore_configs:
        lnc = None
    fields = (*DEVICE_FIELDS, *CORE_FIELDS) if of_cores else DEVICE_FIELDS
    peak = catalog.peak_flops_per_core(snapshot.instance.instance_type)
    found = _rows(snapshot, peak, lnc, (), of_cores=of_cores)
    return [{field.json_name: field.read(row) for field in fields} for row in found]
