"""Power, energy and list price of the cores of processes, as numbers and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neurontools import catalog
from neurontools.model import Instance, Process, Snapshot, SourceKind
from neurontools.model.process import SECONDS_PER_HOUR, age_seconds
from neurontools.util import units

_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Consumption:
    """Power, energy and cost of processes. A value is None if it is unknown for one of them.

    `power_ratio` is the power in the last full minute; 1.0 is one device at its maximum. `cost_usd` is the on-demand
    list price of the instance for the held share of its cores, for the time that the processes have held them.
    """

    power_ratio: float | None
    power_watts: float | None
    energy_kwh: float | None
    cost_usd: float | None


def consumption(processes: Sequence[Process], snapshot: Snapshot) -> Consumption:
    """Returns the power, energy and cost of running processes of the snapshot."""
    watts = snapshot.instance.device_maximum_watts
    power_ratio = _whole_sum(process.power_ratio for process in processes)
    seconds = _whole_sum(process.energy_full_power_seconds for process in processes)
    return Consumption(
        power_ratio=power_ratio,
        power_watts=power_watts(power_ratio, snapshot.instance),
        energy_kwh=None if seconds is None or watts is None else seconds * watts / _JOULES_PER_KWH,
        cost_usd=_whole_sum(_cost_usd(process, snapshot) for process in processes),
    )


def power_watts(power_ratio: float | None, instance: Instance) -> float | None:
    """Returns a power in watts; None if the power, or the maximum power of a device, is unknown."""
    maximum = instance.device_maximum_watts
    return None if power_ratio is None or maximum is None else power_ratio * maximum


def power_mark(snapshot: Snapshot) -> str:
    """Returns ", simulated" for simulated devices, which have neither a measured power nor a price; else ""."""
    return ", simulated" if snapshot.source is SourceKind.SIMULATED else ""


def power_note(snapshot: Snapshot) -> str:
    """Returns the unit of the devices' power, its time, and the sum of all devices in watts if known."""
    ratios = [device.power.average_ratio for device in snapshot.devices if device.power is not None]
    watts = power_watts(sum(ratios), snapshot.instance)
    whole, span = ("", " (min-max)") if watts is None else (f"{watts_text(watts)} in all, ", "")
    return f"{whole}share of the maximum in the last full minute{span}{power_mark(snapshot)}"


def watts_text(watts: float | None) -> str:
    return units.UNKNOWN if watts is None else f"{watts:,.0f} W"


def consumption_facts(processes: Sequence[Process], snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    """Returns the names and texts of the known facts: power with energy, and cost."""
    found = consumption(processes, snapshot)
    mark = " (simulated)" if power_mark(snapshot) else ""
    facts = []
    if found.power_ratio is not None or found.energy_kwh is not None:
        parts = [f"{units.percent_text(found.power_ratio, 1)} of one device's maximum, by busy time"]
        if found.energy_kwh is not None:
            parts = [watts_text(found.power_watts), f"{found.energy_kwh:.3f} kWh so far", *parts]
        facts.append(("power", ", ".join((parts[0] + mark, *parts[1:]))))
    if found.cost_usd is not None:
        instance = snapshot.instance
        price = catalog.on_demand_usd_per_hour(instance.instance_type)
        held = sum(len(process.core_indices) for process in processes)
        text = (
            f"${found.cost_usd:,.2f}{mark} so far: {held} of {_core_count(instance)} cores of "
            f"{instance.instance_type}, list price ${price:,.2f} an hour"
        )
        facts.append(("cost", text))
    return tuple(facts)


def _cost_usd(process: Process, snapshot: Snapshot) -> float | None:
    price = catalog.on_demand_usd_per_hour(snapshot.instance.instance_type)
    held_since = process.attached_at_unix_seconds or process.started_at_unix_seconds
    seconds = age_seconds(held_since, snapshot.taken_at_unix_seconds)
    count = _core_count(snapshot.instance)
    if price is None or seconds is None or not count or not process.core_indices:
        return None
    return price * seconds / SECONDS_PER_HOUR * len(process.core_indices) / count


def _core_count(instance: Instance) -> int:
    return instance.device_count * instance.physical_cores_per_device


def _whole_sum(values: Iterable[float | None]) -> float | None:
    """Returns the sum; None if there are no values or one is unknown."""
    found = tuple(values)
    known = [value for value in found if value is not None]
    return sum(known) if known and len(known) == len(found) else None
