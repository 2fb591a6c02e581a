"""Findings that injected faults have caused are marked, so that nobody takes them for real."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from neurontools.faults.kinds import KINDS
from neurontools.model import FaultState, Finding, Snapshot


def marked(found: Iterable[Finding], snapshot: Snapshot) -> Iterator[Finding]:
    """The findings; of a kind that a fault causes, on a device that it is on, they are injected ones."""
    if not snapshot.injected_faults:
        yield from found
        return
    caused = {
        (finding, device_index)
        for fault in snapshot.injected_faults
        if fault.state is not FaultState.WAITING and fault.kind in KINDS
        for finding in KINDS[fault.kind].findings
        for device_index in fault.device_indices
    }
    for finding in found:
        is_caused = any((finding.kind, index) in caused for index in finding.device_indices)
        yield replace(finding, injected=True) if is_caused else finding
