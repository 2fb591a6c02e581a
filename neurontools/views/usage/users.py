"""What each user has now, and what those of their processes used that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neurontools.model import EndedProcess
from neurontools.model.ended import EndedTotal, by_user
from neurontools.util import units
from neurontools.views.drawing.columns import Column
from neurontools.views.drawing.figures import Figures, ProcessFigures, total
from neurontools.views.drawing.line import foreign


@dataclass(frozen=True, slots=True)
class UserTotal:
    """One user. `ended`: of those of their processes that have ended; None: there are none."""

    name: str | None  # None: not known
    process_count: int
    neuroncore_count: int
    utilization_ratio: float | None  # mean of the cores held
    device_memory_bytes: int | None
    host_memory_bytes: int | None
    vcpu_ratio: float | None  # 2.0 is two vCPUs busy
    ended: EndedTotal | None


def user_totals(figures: Figures, ended: Sequence[EndedProcess]) -> list[UserTotal]:
    """Every user with processes now or before, the most cores first."""
    now: dict[str | None, list[ProcessFigures]] = {}
    for process in figures.by_pid.values():
        now.setdefault(_name(process.process.user, process.process.uid), []).append(process)
    before = {total.name: total for total in by_user(ended)}
    names = [*now, *(name for name in before if name not in now)]
    totals = [_total(name, now.get(name, []), before.get(name)) for name in names]
    return sorted(totals, key=_order)


def _order(of: UserTotal) -> tuple[int, float, str]:
    return -of.neuroncore_count, -(of.ended.neuroncore_hours if of.ended else 0.0), of.name or ""


def _name(user: str | None, uid: int | None) -> str | None:
    return user if user is not None or uid is None else str(uid)


def _total(name: str | None, processes: list[ProcessFigures], ended: EndedTotal | None) -> UserTotal:
    known = [(figures.utilization_ratio, figures.core_count) for figures in processes]
    held = sum(count for ratio, count in known if ratio is not None)
    busy = sum(ratio * count for ratio, count in known if ratio is not None)
    device = [size for figures in processes if (size := figures.device_memory_bytes) is not None]
    host = [size for figures in processes if (size := figures.host_memory_bytes) is not None]
    return UserTotal(
        name=name,
        process_count=len(processes),
        neuroncore_count=sum(figures.core_count for figures in processes),
        utilization_ratio=busy / held if held else None,
        device_memory_bytes=sum(device) if device else None,
        host_memory_bytes=sum(host) if host else None,
        vcpu_ratio=total(vcpu_ratio(figures) for figures in processes),
        ended=ended,
    )


def vcpu_ratio(figures: ProcessFigures) -> float | None:
    """vCPUs that a process keeps busy; 2.0 is two."""
    return total((figures.process.vcpu_user_ratio, figures.process.vcpu_system_ratio))


COLUMNS: tuple[Column[UserTotal], ...] = (
    Column("USER", 14, 0, lambda row: foreign(row.name or "-", 40), True),
    Column("PROCS", 5, 1, lambda row: str(row.process_count)),
    Column("CORES", 5, 0, lambda row: str(row.neuroncore_count)),
    Column("UTIL", 6, 0, lambda row: units.percent_text(row.utilization_ratio, 1)),
    Column("DEV MEM", 9, 2, lambda row: units.bytes_text(row.device_memory_bytes)),
    Column("HOST MEM", 9, 5, lambda row: units.bytes_text(row.host_memory_bytes)),
    Column("CPU", 7, 4, lambda row: units.percent_text(row.vcpu_ratio, 0)),
    Column("ENDED", 6, 3, lambda row: str(row.ended.process_count) if row.ended else "-"),
    Column("FAILED", 6, 7, lambda row: str(row.ended.failed_count) if row.ended else "-"),
    Column("CORE HOURS", 10, 3, lambda row: hours_text(row.ended.neuroncore_hours) if row.ended else "-"),
    Column("MEAN UTIL", 9, 3, lambda row: units.percent_text(row.ended.utilization_ratio if row.ended else None, 1)),
    Column("MEAN MFU", 8, 6, lambda row: units.percent_text(row.ended.mfu_ratio if row.ended else None, 1)),
)


def hours_text(hours: float) -> str:
    """NeuronCore hours: three decimals below 1, else one."""
    return f"{hours:.3f}" if hours < 1 else f"{hours:,.1f}"
