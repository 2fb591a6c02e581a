"""What a record says while there is nothing to say it from: every metric group with an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from neurontools.exporters.monitor.configuration import MonitorConfiguration
from neurontools.exporters.monitor.record import GroupKey, record
from neurontools.exporters.monitor.record_types import Record
from neurontools.model import Host, Snapshot


def outage_record(
    last: Snapshot, configuration: MonitorConfiguration, error: str, is_due: Callable[[GroupKey], bool]
) -> Record:
    """A record without processes whose groups hold nothing but `error`; `last` tells the instance."""
    empty = replace(last, processes=(), devices=(), host=Host())
    made = record(empty, configuration, lambda _: None, is_due)
    for group in cast(dict[str, dict[str, object]], made["system_data"]).values():
        group["error"] = error
    return made
