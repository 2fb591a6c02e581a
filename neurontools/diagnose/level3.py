"""Level 3 of neuron-diag: judges the sustained load, the links between pairs of devices, and the power."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_high
from typing import Any

from neurontools.diagnose.results import Outcome, TestResult
from neurontools.model import Snapshot
from neurontools.util.units import flops_text

SLOW_FACTOR = 1.6
"""A core is slow if the fastest one, or its own begin, is so many times as fast."""
SLOW_LINK_FACTOR = 2.0
"""A link is slow if the median link is so many times as fast."""
SLOW_ACTION = "keep jobs off this device; stop and start the instance to get another host"
_SLOW_LINK_ACTION = "keep jobs off both devices; stop and start the instance to get another host"
_SWITCHED = "switched"  # the devices of this topology list no neighbours


@dataclass(frozen=True, slots=True)
class Link:
    """A NeuronLink between two devices, the lower index first."""

    device_index: int
    peer_device_index: int

    def __str__(self) -> str:
        return f"the link between devices {self.device_index} and {self.peer_device_index}"

    def result(self, outcome: Outcome, reason: str, action: str = "", **values: Any) -> TestResult:
        peer = self.peer_device_index
        return TestResult("links", outcome, reason, action, self.device_index, peer_device_index=peer, **values)


def links_between(snapshot: Snapshot, device_indices: Collection[int]) -> list[Link]:
    """Returns the links between these devices. Behind a switch, each device is paired with the next one."""
    devices = sorted((device for device in snapshot.devices if device.index in device_indices), key=lambda d: d.index)
    if snapshot.instance.topology == _SWITCHED and len(devices) > 1:
        indices = [device.index for device in devices]
        pairs = zip(indices, [*indices[1:], indices[0]], strict=True)
    else:
        pairs = ((device.index, peer) for device in devices for peer in device.connected_to if peer in device_indices)  # type: ignore[assignment]
    return [Link(*pair) for pair in sorted({(min(pair), max(pair)) for pair in pairs})]


def judged_links(links: Sequence[Link], lines: Mapping[int, Mapping[str, Any]], retry: str) -> Iterator[TestResult]:
    """Yields the result of each link that has a line of the workload, by its position in `links`."""
    rates = [float(line["measured"]) for line in lines.values() if line["outcome"] == Outcome.PASS]
    expected = median_high(rates) if len(rates) > 1 else None
    source = f"median of {len(rates)} links of this host" if expected is not None else ""
    for position, line in sorted(lines.items()):
        link = links[position]
        if line["outcome"] != Outcome.PASS:
            yield link.result(Outcome.FAIL, f"{link}: {str(line['reason'])[:500]}", retry)
            continue
        rate = float(line["measured"])
        values: dict[str, Any] = {"measured": rate, "expected": expected, "unit": "bytes/s", "source": source}
        if expected is not None and rate * SLOW_LINK_FACTOR < expected:
            reason = f"{link} is {expected / rate:.1f} times as slow as the median"
            yield link.result(Outcome.FAIL, reason, _SLOW_LINK_ACTION, **values)
        else:
            compared = "about as fast as the median link" if expected is not None else "no link to compare with"
            yield link.result(Outcome.PASS, f"bytes return intact; {compared}", **values)


def judged_load(
    results: Sequence[TestResult], early_rates: Mapping[int | None, float], *, is_simulated: bool
) -> Iterator[TestResult]:
    """Yields the results of the sustained load; a core that became slow fails.

    `early_rates` has the FLOP/s of the first half of the load, by core. On simulated cores, only the comparison with
    the fastest of these results counts, because other programs of the host slow all cores.
    """
    rates = [result.measured for result in results if result.outcome is Outcome.PASS and result.measured is not None]
    best = max(rates, default=0.0)
    for result in results:
        rate = result.measured
        if result.outcome is not Outcome.PASS or rate is None:
            yield result
            continue
        early = early_rates.get(result.neuroncore_index, rate)
        if rate * SLOW_FACTOR < best:
            reason = f"under load, the fastest core is {best / rate:.1f} times as fast"
        elif not is_simulated and rate * SLOW_FACTOR < early:
            reason = f"under load, the speed fell from {flops_text(early)} to {flops_text(rate)}"
        else:
            yield result
            continue
        yield replace(result, outcome=Outcome.FAIL, reason=reason, action=SLOW_ACTION)


def power_results(snapshot: Snapshot, device_indices: Collection[int]) -> Iterator[TestResult]:
    """Records the power of each device in the last full minute, where the driver reports it. Judges nothing."""
    for device in snapshot.devices:
        if device.index in device_indices:
            if device.power is None:
                yield TestResult("power", Outcome.SKIP, "the driver reports no power", "", device.index)
            else:
                values = {"measured": device.power.maximum_ratio, "unit": "ratio of the maximum"}
                yield TestResult("power", Outcome.PASS, "highest power of the last minute", "", device.index, **values)  # type: ignore[arg-type]
