"""HBM: how high it rose, and what lay there then."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from neurontools.profile import Profile, SourceLine
from neurontools.profile.definitions import ALLOCATED, CATEGORIES, script_line


@dataclass(frozen=True, slots=True)
class LineMemory:
    """The storages that one line of the script had allocated in a category."""

    category: str
    place: SourceLine | None  # None: not known, as of what the runtime itself needs
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The most HBM that was in use on one core in the part of the profile that is kept, and what made it.

    `highest_bytes` is the most in the whole profile: where it is more, that moment is no longer kept.
    """

    core: int
    at_ns: int
    bytes: int
    by_category: dict[str, int]
    shares: tuple[LineMemory, ...]  # the largest first
    highest_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """HBM of one core by category, in the order of CATEGORIES, from a moment on: the highest of a stretch of time."""

    at_ns: int
    bytes: tuple[int, ...]


def find_peak(profile: Profile) -> MemoryPeak | None:
    """The peak of the core that had most; None where nothing is kept of it.

    Of a profile that has its end, every allocation counts; else the levels that were noted, after executions.
    """
    found = [_exact_peak(profile, core) for core in profile.metadata.cores] if _is_anchored(profile) else []
    highest = max((each for each in found if each is not None), key=lambda each: each[0], default=None)
    if highest is None:
        highest = _noted_peak(profile)
        if highest is None:
            return None
    size, core, at_ns, position = highest
    shares = _shares(profile, core, at_ns, position)
    by_category = dict.fromkeys(CATEGORIES, 0)
    for share in shares:
        by_category[share.category] += share.bytes
    known = dict(zip(profile.metadata.cores, profile.state.hbm_peak_bytes, strict=False)).get(core, size)
    # What the runtime itself needs has no allocations, so it counts here as at the end, which may be a little more.
    return MemoryPeak(core, at_ns, min(size, known), by_category, shares, known)


def levels_over_time(profile: Profile, core: int, most: int) -> tuple[MemoryLevel, ...]:
    """The levels of a core over the time that is kept, in at most so many stretches of one length."""
    if _is_anchored(profile):
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


_Found = tuple[int, int, int, int | None]  # bytes, core, when, and after how many allocations of all cores


def _is_anchored(profile: Profile) -> bool:
    """Whether all storages of the end are known, from which the levels before it follow."""
    return profile.state.has_ended and len(profile.allocations) > 0 and len(profile.blocks) > 0


def _signed(profile: Profile, core: int) -> list[int]:
    """By how much each allocation changed what the core has in use; 0 of those of other cores."""
    table = profile.allocations
    columns = zip(table.column("core"), table.column("action"), table.column("bytes"), strict=True)
    return [0 if on != core else size if action == ALLOCATED else -size for on, action, size in columns]


def _exact_peak(profile: Profile, core: int) -> _Found | None:
    changes = _signed(profile, core)
    at_end = sum(block.bytes for block in profile.blocks if block.core == core)
    levels = list(accumulate(changes, initial=at_end - sum(changes)))
    position = max(range(1, len(levels)), key=levels.__getitem__, default=None)
    if position is None:
        return None
    return levels[position], core, profile.allocations.column("time_ns")[position - 1], position


def _noted_peak(profile: Profile) -> _Found | None:
    levels = profile.memory_levels
    if not len(levels):
        return None
    totals = [sum(values) for values in zip(*levels.columns[2:], strict=True)]
    row = levels[max(range(len(totals)), key=totals.__getitem__)]
    return row.total_bytes, row.core, row.time_ns, None


def _exact_levels(profile: Profile, core: int) -> list[tuple[int, tuple[int, ...]]]:
    """The levels after each allocation, from the end backwards: what a storage was for is known at its end."""
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


def _shares(profile: Profile, core: int, at_ns: int, position: int | None) -> tuple[LineMemory, ...]:
    """What lay on a core at a moment, or after so many allocations.

    A storage lay there if it was allocated before and freed after, or never. One whose allocation is not kept was
    there from the beginning; a freed one of these tells its size, and nobody knows any more who allocated it.
    """
    table = profile.allocations
    if position is None:
        position = bisect_right(table.column("time_ns"), at_ns)
    there: dict[int, tuple[int, int, int]] = {}  # by address: bytes, category, stack
    begun_after: set[int] = set()
    names = ("core", "action", "address", "bytes", "category", "stack")
    rows = zip(*(table.column(name) for name in names), strict=True)
    for number, (on, action, address, size, category, stack) in enumerate(rows):
        if on != core:
            continue
        if number < position:
            if action == ALLOCATED:
                there[address] = (size, category, stack)
            else:
                there.pop(address, None)
        elif action == ALLOCATED:
            begun_after.add(address)
        elif address not in begun_after:
            _settle(there, address, size, category, stack)
            begun_after.add(address)  # what comes there later is another one
    for block in profile.blocks:
        if block.core == core and block.address not in begun_after:
            _settle(there, block.address, block.bytes, block.category, block.stack)
    return _grouped(profile, there.values())


def _settle(there: dict[int, tuple[int, int, int]], address: int, size: int, category: int, stack: int) -> None:
    """Notes what a storage was for, which is known when it ends; who allocated it was known before, or is now."""
    known = there.get(address)
    there[address] = (size, category, stack) if known is None else (known[0], category, known[2])


def _grouped(profile: Profile, storages: Iterable[tuple[int, int, int]]) -> tuple[LineMemory, ...]:
    sizes: dict[tuple[str, SourceLine | None], list[int]] = {}
    for size, category, stack in storages:
        key = CATEGORIES[category], script_line(profile.stack(stack))
        sizes.setdefault(key, []).append(size)
    shares = (LineMemory(*key, sum(each), len(each)) for key, each in sizes.items())
    return tuple(sorted(shares, key=lambda share: (-share.bytes, share.category)))
