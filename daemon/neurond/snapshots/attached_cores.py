"""Brings together what a source found out about who holds which core, and what processes claim by being attached."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from neurond.ownership.holding import Holding
from neurontools.model import NeuronCore, Process


def with_attached(
    cores: tuple[NeuronCore, ...], found: tuple[Process, ...], holdings: Iterable[Holding]
) -> tuple[tuple[NeuronCore, ...], tuple[Process, ...]]:
    """Cores and found processes of real devices, where an attached process owns the cores it is attached to.

    It has said itself which are its own, so it owns no others, and nobody else owns them, whatever was found.
    """
    claims = {core: holding.pid for holding in holdings for core in holding.physical_cores()}
    if not claims:
        return cores, found
    attached = set(claims.values())
    owned = tuple(_owned(core, claims.get(core.index), attached) for core in cores)
    owner_of = {core.index: core.owner_pid for core in owned}
    return owned, tuple(_holder(process, owner_of) for process in found)


def _owned(core: NeuronCore, claimed_by: int | None, attached: set[int]) -> NeuronCore:
    if claimed_by is not None:
        return replace(core, owner_pid=claimed_by, candidate_pids=(), inferred_fields=())
    if core.owner_pid in attached:
        return replace(core, owner_pid=None, inferred_fields=())
    if attached.isdisjoint(core.candidate_pids):
        return core
    return replace(core, candidate_pids=tuple(pid for pid in core.candidate_pids if pid not in attached))


def _holder(process: Process, owner_of: dict[int, int | None]) -> Process:
    """A found process without the cores that others are attached to."""
    kept = tuple(core for core in process.core_indices if owner_of.get(core) == process.pid)
    if kept == process.core_indices:
        return process
    lnc = process.logical_neuroncore_config
    return replace(
        process,
        core_indices=kept,
        neuroncore_indices=tuple(dict.fromkeys(core // lnc for core in kept)),
        inferred_fields=process.inferred_fields if kept else (),
    )
