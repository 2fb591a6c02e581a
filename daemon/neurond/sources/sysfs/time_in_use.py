"""How busy a core was, from the driver's `nc_time_in_use`: in which unit it counts, and whether it counts at all.

The documentation says microseconds, the newest driver's source picoseconds. So the unit starts as microseconds and,
once a core was busier than possible, becomes a finer one for the whole session. One interval proves nothing: an old
driver adds the whole run of a process at its end, and one that updates its counters seldom, or a reader that was held
up, packs the work of a long interval into a short one. So it takes two intervals that follow each other and are far
beyond what is possible, or half a minute that is beyond it on the whole.

Drivers before 2.30 don't move the counters while a process runs: there, busy time is unknown while one is attached.
"""

from __future__ import annotations

from neurontools.driver.sysfs_files import LIVE_COUNTERS_SINCE

UNITS_PER_SECOND = {"us": 1e6, "ns": 1e9, "ps": 1e12}
_HIGHEST_RATIO = 1.05  # clocks jitter
_BELIEVED_RATIO = 2.5  # of one interval: up to here it may be the work of the one before, too
_PROVING_RATIO = 10.0  # of two intervals that follow each other
_WINDOW_SECONDS, _WINDOW_RATIO = 30.0, 1.1  # of a window, in which bursts even out
_UNIT_NAMES = {"us": "microseconds", "ns": "nanoseconds", "ps": "picoseconds"}


class TimeInUse:
    """Belongs to one driver. `unit` is one of UNITS_PER_SECOND; with `is_fixed` it was told and never changes."""

    def __init__(self, unit: str | None, driver_version: tuple[int, ...] | None) -> None:
        self.unit = unit or "us"
        self.is_fixed = unit is not None
        self.highest_units_per_second = 0.0
        self.is_live = driver_version is not None and driver_version >= LIVE_COUNTERS_SINCE
        self._cores: dict[int, _Core] = {}

    def measure(
        self, core: int, raw: int | None, at_seconds: float, owners: object, *, is_attached: bool
    ) -> float | None:
        """The busy seconds of a core so far; None when they can't be told now.

        `owners` is anything that is equal as long as the same processes are attached to the core's device.
        """
        state = self._cores.get(core)
        if state is None:
            state = self._cores[core] = _Core()
        is_same = at_seconds == state.at_seconds
        grown = state.grown(raw, at_seconds, owners)
        if raw is None:
            return None
        if grown is not None and state.is_steady:
            # Growth while the same processes stay attached is what an old driver never shows; once may be an exit.
            state.growing = state.growing + 1 if grown > 0 and is_attached else 0
            if state.growing >= 2:
                self.is_live = True
            self._calibrate(state, grown, raw, at_seconds)
        elif not is_same or not state.is_steady:
            state.growing = state.excess = 0
            state.window = None
        if not self.is_live and (is_attached or not state.is_steady):
            return None
        if grown is not None and grown / UNITS_PER_SECOND[self.unit] > _BELIEVED_RATIO:
            return None
        return raw / UNITS_PER_SECOND[self.unit]

    def forget(self, present: set[int]) -> None:
        """Forgets cores that are gone."""
        for core in self._cores.keys() - present:
            del self._cores[core]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the numbers should know."""
        if self.is_fixed or self.unit == "us":
            return ()
        text = (
            f"nc_time_in_use grew by {self.highest_units_per_second:.3g} units a second, more than microseconds allow: "
            f"taken as {_UNIT_NAMES[self.unit]} (set sysfs.time_in_use_unit to say which it is)"
        )
        return (text,)

    def _calibrate(self, state: _Core, units_per_second: float, raw: int, at_seconds: float) -> None:
        if self.is_fixed or not self.is_live:
            return
        is_far_beyond = units_per_second / UNITS_PER_SECOND[self.unit] > _PROVING_RATIO
        state.excess = state.excess + 1 if is_far_beyond else 0
        if state.excess >= 2:
            self._refine(units_per_second)
            return
        sustained = state.sustained(raw, at_seconds)
        if sustained is not None and sustained / UNITS_PER_SECOND[self.unit] > _WINDOW_RATIO:
            self._refine(sustained)

    def _refine(self, units_per_second: float) -> None:
        self.highest_units_per_second = max(self.highest_units_per_second, units_per_second)
        fitting = [unit for unit, each in UNITS_PER_SECOND.items() if units_per_second / each <= _HIGHEST_RATIO]
        if fitting:  # finer than now: what is refined for is beyond what is possible now
            self.unit = fitting[0]
            for core in self._cores.values():
                core.excess = 0
                core.window = None


class _Core:
    """What was seen of one core: the raw counter, when, and who was attached then and before.

    `is_steady`: nobody came or went. Owners are looked at after the counters, so one who left between the two shows in
    the interval before.
    """

    __slots__ = ("at_seconds", "excess", "growing", "is_steady", "owners", "owners_before", "raw", "window")

    def __init__(self) -> None:
        self.raw: int | None = None
        self.at_seconds: float | None = None
        self.owners: object = None
        self.owners_before: object = None
        self.growing = 0
        self.excess = 0
        self.window: tuple[int, float] | None = None  # the counter and the time at which it began

    def sustained(self, raw: int, at_seconds: float) -> float | None:
        """Growth a second over a whole window, at the end of each; None before."""
        if self.window is None:
            self.window = raw, at_seconds
            return None
        seconds = at_seconds - self.window[1]
        if seconds < _WINDOW_SECONDS:
            return None
        growth = (raw - self.window[0]) / seconds
        self.window = raw, at_seconds
        return growth

    def grown(self, raw: int | None, at_seconds: float, owners: object) -> float | None:
        """Growth a second since the measurement before; None without one and after a write to the counter."""
        grown = None
        if self.at_seconds is None:
            self.owners = self.owners_before = owners
        elif raw is not None and self.raw is not None and raw >= self.raw and at_seconds > self.at_seconds:
            grown = (raw - self.raw) / (at_seconds - self.at_seconds)
        self.is_steady = owners == self.owners == self.owners_before
        self.raw, self.at_seconds = raw, at_seconds
        self.owners_before, self.owners = self.owners, owners
        return grown
