"""What the kubelet has given to a pod in which nobody holds it."""

from __future__ import annotations

from collections.abc import Iterator

from neurontools.model import Finding, PodAllocation, Severity, Snapshot
from neurontools.model.finding import Kind
from neurontools.util.units import ranges_text

_Key = tuple[str, str, str]


class Orphans:
    """Remembers since when nobody has held what was given. Show it every snapshot of a tick, in order."""

    def __init__(self) -> None:
        self._since_unix_seconds: dict[_Key, float] = {}

    def look(self, snapshot: Snapshot, patience_seconds: float | None) -> Iterator[Finding]:
        """A finding for each container that has had something for so long, and nobody in it who holds it."""
        if patience_seconds is None or not snapshot.pod_allocations:
            self._since_unix_seconds = {}
            return
        now = snapshot.taken_at_unix_seconds
        since: dict[_Key, float] = {}
        for allocation in snapshot.pod_allocations:
            unheld, device_indices = _unheld(allocation, snapshot)
            if not unheld:
                continue
            key = allocation.pod_namespace, allocation.pod_name, allocation.container_name
            since[key] = self._since_unix_seconds.get(key, now)
            if now - since[key] >= patience_seconds:
                pod = f"{allocation.pod_namespace}/{allocation.pod_name}"
                yield Finding(
                    Kind.ORPHANED,
                    Severity.NOTICE,
                    f"the kubelet has given NeuronCore{'s' if len(unheld) > 1 else ''} {ranges_text(unheld)} to pod "
                    f"{pod}, container {allocation.container_name}, where nobody holds "
                    f"{'them' if len(unheld) > 1 else 'it'}",
                    f"end the pod if its work is done (kubectl -n {allocation.pod_namespace} delete pod "
                    f"{allocation.pod_name}), so that others can have them",
                    since[key],
                    device_indices,
                    job=f"pod {pod}",
                    part=allocation.container_name,
                )
        self._since_unix_seconds = since


def _unheld(allocation: PodAllocation, snapshot: Snapshot) -> tuple[list[int], tuple[int, ...]]:
    """The logical cores of an allocation that nobody holds, may hold or has memory on, and their devices."""
    lnc = snapshot.instance.logical_neuroncore_config
    cores, devices = set(allocation.neuroncore_indices), set(allocation.device_indices)
    found: dict[int, bool] = {}
    places: dict[int, int] = {}
    for core in snapshot.cores:
        logical = core.index // lnc
        if logical in cores or core.device_index in devices:
            is_held = core.owner_pid is not None or bool(core.candidate_pids) or core.is_allocated
            found[logical] = found.get(logical, False) or is_held
            places[logical] = core.device_index
    unheld = [logical for logical, is_held in found.items() if not is_held]
    return unheld, tuple(sorted({places[logical] for logical in unheld}))
