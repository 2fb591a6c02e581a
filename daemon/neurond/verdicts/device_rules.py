"""Rules about devices: those that are missing, their ECC counters, their memory."""

from __future__ import annotations

from collections.abc import Iterator

from neurond.verdicts.evidence import Evidence, at_least, counted, growth
from neurond.verdicts.hysteresis import Hysteresis, Level
from neurontools.model import Device, EccCounters, Finding, HbmStack, Severity
from neurontools.model.finding import Kind
from neurontools.util.units import bytes_text

_BETTER_RATIO = 0.95  # of the share from which on a stack is nearly full: below it, it clearly is not
_TOLD_STEP_PERCENT = 2  # by less, what is told stays

_Stack = tuple[int, int]  # indices of the device and of the stack


def missing(evidence: Evidence) -> Iterator[Finding]:
    """Devices that should be here, for this reader, and that the driver doesn't show, or that nobody can open."""
    present = {device.index for device in evidence.snapshot.devices}
    instance = evidence.snapshot.instance
    whose = "this container was given it" if instance.foreign_device_count > 0 else "the instance has it"
    for index in instance.expected_device_indices:
        if index in present:
            continue
        if index in instance.fileless_device_indices:
            why = f"the driver shows it, its device file /dev/neuron{index} is gone, and nobody can open it"
            action = f"make the file again (as root: udevadm trigger --name-match=neuron{index}) or reload the driver"
        else:
            why = f"{whose}, the driver doesn't show it"
            action = "see dmesg for its failure; stop and start the instance to get another host"
        yield Finding(
            Kind.DEVICE_MISSING,
            Severity.CRITICAL,
            f"device {index} is missing: {why}",
            action,
            evidence.snapshot.taken_at_unix_seconds,
            (index,),
        )


class Ecc:
    """ECC errors: uncorrected ones since the driver was loaded, corrected ones that are many.

    Counters seldom move, so what was found of a device is kept for as long as they stand still.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[EccCounters, EccCounters | None, tuple[Finding, ...]]] = {}

    def __call__(self, evidence: Evidence) -> Iterator[Finding]:
        """The findings of this moment."""
        found: dict[int, tuple[EccCounters, EccCounters | None, tuple[Finding, ...]]] = {}
        for device in evidence.snapshot.devices:
            before = evidence.devices.get(device.index)
            past = None if before is None else before.ecc
            known = self._found.get(device.index)
            if known is None or known[0] is not device.ecc or known[1] is not past:
                known = device.ecc, past, tuple(_ecc(device, past, evidence))
            found[device.index] = known
            yield from known[2]
        self._found = found


def _ecc(device: Device, before: EccCounters | None, evidence: Evidence) -> Iterator[Finding]:
    at, limit = evidence.snapshot.taken_at_unix_seconds, evidence.limits.ecc_corrected_events
    now, where = device.ecc, (device.index,)
    for part, uncorrected in (("hbm", now.mem_uncorrected_total), ("sram", now.sram_uncorrected_total)):
        if uncorrected:
            yield Finding(
                Kind.ECC_UNCORRECTED,
                Severity.CRITICAL,
                f"{counted(uncorrected, 'uncorrected ECC error')} in {part.upper()} since the driver was loaded",
                "move the work off this device; stop and start the instance to get another host",
                at,
                where,
                part=part,
            )
    if now.mem_repairable_uncorrected_total:
        yield Finding(
            Kind.ECC_REPAIRABLE,
            Severity.WARNING,
            f"{counted(now.mem_repairable_uncorrected_total, 'repairable uncorrected ECC error')} in HBM",
            "end the processes on this device and reset it (or reboot), which repairs the rows",
            at,
            where,
            part="hbm",
        )
    if before is not None and before is not now and limit is not None:
        events = growth(before.mem_corrected_total, now.mem_corrected_total)
        events += growth(before.sram_corrected_total, now.sram_corrected_total)
        if events >= limit:
            yield Finding(
                Kind.ECC_CORRECTED,
                Severity.WARNING,
                f"{at_least(events, 'corrected ECC error')} in the last minutes",
                "nothing is lost yet; if they go on, move the work and have the host replaced",
                at,
                where,
            )


class Memory:
    """Remembers which HBM stacks it has found nearly full. Show it every snapshot of a tick, in order."""

    def __init__(self) -> None:
        self._full: Hysteresis[_Stack] = Hysteresis()
        self._told_percent: dict[_Stack, int] = {}

    def __call__(self, evidence: Evidence) -> Iterator[Finding]:
        """The findings of this moment."""
        limit_ratio, now_seconds = evidence.limits.memory_used_ratio, evidence.snapshot.taken_at_unix_seconds
        told_percent: dict[_Stack, int] = {}
        for device in evidence.snapshot.devices if limit_ratio else ():
            for stack in device.hbm_stacks:
                if not limit_ratio or stack.used_bytes is None or stack.capacity_bytes <= 0:
                    continue
                key, used_ratio = (device.index, stack.index), stack.used_bytes / stack.capacity_bytes
                since = self._full.holds_since(
                    key, _level(used_ratio, limit_ratio), now_seconds, begins_after_seconds=0.0, ends_after_seconds=0.0
                )
                if since is not None:
                    percent = self._worth_telling(key, int(100 * stack.used_bytes / stack.capacity_bytes))
                    told_percent[key] = percent
                    yield _nearly_full(device, stack, percent, since)
        self._full.keep(told_percent)
        self._told_percent = told_percent

    def _worth_telling(self, key: _Stack, percent: int) -> int:
        """What was told, unless it has become quite another: the text of a finding is a label, and stays."""
        told = self._told_percent.get(key)
        return percent if told is None or abs(percent - told) >= _TOLD_STEP_PERCENT else told


def _level(used_ratio: float, limit_ratio: float) -> Level:
    if used_ratio >= limit_ratio:
        return Level.OVER
    return Level.BETTER if used_ratio < _BETTER_RATIO * limit_ratio else Level.BETWEEN


def _nearly_full(device: Device, stack: HbmStack, percent: int, began_at_unix_seconds: float) -> Finding:
    return Finding(
        Kind.MEMORY_NEARLY_FULL,
        Severity.WARNING,
        f"HBM {stack.index} is {percent}% full, of {bytes_text(stack.capacity_bytes)}",
        "the next allocation may fail; use smaller batches, shard further or end a process",
        began_at_unix_seconds,
        (device.index,),
        part=f"hbm {stack.index}",
    )
