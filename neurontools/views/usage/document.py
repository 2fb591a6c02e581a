"""Users in the JSON document."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.views.drawing.figures import Figures
from neurontools.views.usage.users import user_totals


@dataclass(frozen=True, slots=True)
class TopUser:
    """What the processes of one user have now."""

    user: str | None
    process_count: int
    neuroncore_count: int
    utilization_ratio: float | None  # mean of the NeuronCores held
    device_memory_bytes: int | None
    host_memory_bytes: int | None
    vcpu_ratio: float | None


def top_users(figures: Figures) -> tuple[TopUser, ...]:
    """The documents of all users with processes."""
    return tuple(
        TopUser(
            total.name,
            total.process_count,
            total.neuroncore_count,
            total.utilization_ratio,
            total.device_memory_bytes,
            total.host_memory_bytes,
            total.vcpu_ratio,
        )
        for total in user_totals(figures, ())
    )
