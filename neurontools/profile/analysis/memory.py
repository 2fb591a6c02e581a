"""HBM use over time, and the storages that were live at its peak."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from neurontools.profile import Profile, SourceLine
from neurontools.profile.definitions import ALLOCATED, CATEGORIES, script_line


@dataclass(frozen=True, slots=True)
class LineMemory:
    """The live storages of one category that one line of the script allocated."""

    category: str
    place: SourceLine | None  # allocating line; None if unknown, as for memory of the runtime itself
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The peak of HBM use on one core in the events of the profile, and the storages that were live then.

    `highest_bytes` is the peak of the whole profile, including times whose events were dropped.
    """

    core: int
    at_ns: int
    bytes: int
    by_category: dict[str, int]
    shares: tuple[LineMemory, ...]  # the largest first
    highest_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """The highest HBM use of one core in an interval: its time, and the bytes of each category of CATEGORIES."""

    at_ns: int
    bytes: tuple[int, ...]


def find_peak(profile: Profile) -> MemoryPeak | None:
    """Finds the peak of the core with the highest HBM use; None if the profile has no memory events.

    A finished profile yields the exact peak from its allocations. Otherwise the peak comes from the levels that were
    sampled after executions.
    """
    found = [_exact_peak(profile, core) for core in profile.metadata.cores] if _has_exact_levels(profile) else []
    highest = max((each for each in found if each is not None), key=lambda each: each[0], default=None)
    if highest is None:
        highest = _sampled_peak(profile)
        if highest is None:
            return None
    size, core, at_ns, position = highest
    shares = _live_memory(profile, core, at_ns, position)
    by_category = dict.fromkeys(CATEGORIES, 0)
    for share in shares:
        by_category[share.category] += share.bytes
    core_peak = dict(zip(profile.metadata.cores, profile.state.hbm_peak_bytes, strict=False)).get(core, size)
    # The computed `size` may exceed the true peak, because it includes the runtime's own memory at its final size.
    return MemoryPeak(core, at_ns, min(size, core_peak), by_category, shares, core_peak)


def levels_over_time(profile: Profile, core: int, most: int) -> tuple[MemoryLevel, ...]:
    """Returns the HBM levels of a core: the highest level in each of at most `most` equal intervals."""
    if _has_exact_levels(profile):
        rows = _exact_levels(profile, core)
    else:
        rows = [(row.time_ns, row[2:]) for row in profile.memory_levels if row.core == core]
    if not rows:
        return ()
    first, last = rows[0][0], rows[-1][0]
    length = max(1, -(-(last - first + 1) // most))
    found: list[MemoryLevel] = []
    highest, highest_bytes = rows[0], sum(rows[0][1])
    for row in rows:
        size = sum(row[1])
        is_next = (row[0] - first) // length != (highest[0] - first) // length
        if is_next:
            found.append(MemoryLevel(*highest))
        if is_next or size > highest_bytes:
            highest, highest_bytes = row, size
    found.append(MemoryLevel(*highest))
    return tuple(found)


_PeakPosition = tuple[int, int, int, int | None]
"""Bytes, core, time in ns, and the number of preceding allocation events (None if sampled)."""


def _has_exact_levels(profile: Profile) -> bool:
    """Whether the final storages are known, so that all earlier levels can be computed from them."""
    return profile.state.has_ended and len(profile.allocations) > 0 and len(profile.blocks) > 0


def _signed_sizes(profile: Profile, core: int) -> list[int]:
    """Returns the change in bytes of each allocation event; 0 for events of other cores."""
    table = profile.allocations
    columns = zip(table.column("core"), table.column("action"), table.column("bytes"), strict=True)
    return [0 if on != core else size if action == ALLOCATED else -size for on, action, size in columns]


def _exact_peak(profile: Profile, core: int) -> _PeakPosition | None:
    changes = _signed_sizes(profile, core)
    at_end = sum(block.bytes for block in profile.blocks if block.core == core)
    levels = list(accumulate(changes, initial=at_end - sum(changes)))
    position = max(range(1, len(levels)), key=levels.__getitem__, default=None)
    if position is None:
        return None
    return levels[position], core, profile.allocations.column("time_ns")[position - 1], position


def _sampled_peak(profile: Profile) -> _PeakPosition | None:
    levels = profile.memory_levels
    if not len(levels):
        return None
    totals = [sum(values) for values in zip(*levels.columns[2:], strict=True)]
    row = levels[max(range(len(totals)), key=totals.__getitem__)]
    return row.total_bytes, row.core, row.time_ns, None


def _exact_levels(profile: Profile, core: int) -> list[tuple[int, tuple[int, ...]]]:
    """Returns the levels after each event. Computes backwards: only release events have a storage's last category."""
    table = profile.allocations
    levels = [0] * len(CATEGORIES)
    category_of: dict[int, int] = {}
    for block in profile.blocks:
        if block.core == core:
            levels[block.category] += block.bytes
            category_of[block.address] = block.category
    names = ("time_ns", "core", "action", "address", "bytes", "category")
    rows = list(zip(*(table.column(name) for name in names), strict=True))
    found = []
    for at_ns, on, action, address, size, category in reversed(rows):
        if on != core:
            continue
        found.append((at_ns, tuple(levels)))
        if action == ALLOCATED:
            levels[category_of.pop(address, category)] -= size
        else:
            levels[category] += size
            category_of[address] = category
    return found[::-1]


def _live_memory(profile: Profile, core: int, at_ns: int, position: int | None) -> tuple[LineMemory, ...]:
    """Returns the live memory of a core by line, after `position` events; at the time `at_ns` if `position` is None.

    A storage without an allocation event in the profile was live from the beginning; its release event gives its size.
    """
    table = profile.allocations
    if position is None:
        position = bisect_right(table.column("time_ns"), at_ns)
    live: dict[int, tuple[int, int, int]] = {}  # maps address to bytes, category and stack
    reused_addresses: set[int] = set()
    names = ("core", "action", "address", "bytes", "category", "stack")
    rows = zip(*(table.column(name) for name in names), strict=True)
    for number, (on, action, address, size, category, stack) in enumerate(rows):
        if on != core:
            continue
        if number < position:
            if action == ALLOCATED:
                live[address] = (size, category, stack)
            else:
                live.pop(address, None)
        elif action == ALLOCATED:
            reused_addresses.add(address)
        elif address not in reused_addresses:
            _set_final_category(live, address, size, category, stack)
            reused_addresses.add(address)  # later events at the same address belong to another storage
    for block in profile.blocks:
        if block.core == core and block.address not in reused_addresses:
            _set_final_category(live, block.address, block.bytes, block.category, block.stack)
    return _sum_by_line(profile, live.values())


def _set_final_category(
    live: dict[int, tuple[int, int, int]], address: int, size: int, category: int, stack: int
) -> None:
    """Sets the last category of a storage. Keeps the size and stack of its allocation event if there is one."""
    allocation = live.get(address)
    live[address] = (size, category, stack) if allocation is None else (allocation[0], category, allocation[2])


def _sum_by_line(profile: Profile, storages: Iterable[tuple[int, int, int]]) -> tuple[LineMemory, ...]:
    sizes: dict[tuple[str, SourceLine | None], list[int]] = {}
    for size, category, stack in storages:
        key = CATEGORIES[category], script_line(profile.stack(stack))
        sizes.setdefault(key, []).append(size)
    shares = (LineMemory(*key, sum(each), len(each)) for key, each in sizes.items())
    return tuple(sorted(shares, key=lambda share: (-share.bytes, share.category)))
