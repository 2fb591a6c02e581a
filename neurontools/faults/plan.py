"""A fault plan: what breaks when and where, told by a seed; the same seed tells the same story.

The default mix and the mean time between faults go by published failures of a large training run: 419 faults of 16,384
accelerators in 54 days (Llama 3, arXiv:2407.21783), 4.7e-4 a device-day. AWS publishes none of Trainium. What no
single host shows (maintenance, parts of the host: 11 %) is left out; `host-lost` stands for it in a fleet.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

from neurontools.faults.kinds import KINDS
from neurontools.faults.request import LARGEST_SEED, MOST_SECONDS, FaultRequest
from neurontools.util.terminal import error_excerpt, escape_controls

FAULTS_PER_DEVICE_DAY = 4.7e-4
_DAY_SECONDS = 86_400.0
MOST_PLANNED = 1000  # on a host; as many as a daemon takes

USUAL_MIX: Mapping[str, float] = MappingProxyType(
    {
        "hang-compute": 17.5,
        "device-lost": 17.5,
        "hbm-uncorrectable": 12.0,
        "hbm-repairable": 5.0,
        "link-down": 5.0,
        "network-proxy": 5.0,
        "sram-uncorrectable": 5.0,
        "dma-abort": 4.0,
        "execution-unit-lost": 4.0,
        "out-of-bounds": 6.5,
        "queue-overflow": 6.5,
        "hang-collective": 2.0,
        "bit-flip": 1.4,
        "slow-core": 1.4,
    }
)
"""Shares of kinds, in percent of all faults."""


class BadPlan(ValueError):
    """A plan that can't be meant; the text says what, why and what to give instead, in one line."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What a plan file says. `mean_seconds_between_faults` is of one host; None: as published, by its devices.

    `for_seconds` ends each fault by itself; None: it lasts as its kind does.
    """

    seed: int = 0
    duration_seconds: float = 3600.0
    mean_seconds_between_faults: float | None = None
    for_seconds: float | None = None
    mix: Mapping[str, float] = field(default_factory=lambda: USUAL_MIX)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of the story: on which host, and what is to be asked for there at once."""

    host_index: int
    request: FaultRequest

    @property
    def at_seconds(self) -> float:
        """When, from the beginning of the story."""
        return self.request.after_seconds or 0.0


def story(plan: FaultPlan, device_counts: Sequence[int]) -> tuple[PlannedFault, ...]:
    """All that happens on hosts with so many devices each, in order of time; BadPlan when it is too much.

    What happens on a host does not depend on the other hosts.
    """
    told = [each for index, count in enumerate(device_counts) for each in _of_host(plan, index, count)]
    return tuple(sorted(told, key=lambda each: (each.at_seconds, each.host_index)))


def _of_host(plan: FaultPlan, host_index: int, device_count: int) -> Iterator[PlannedFault]:
    random = Random(f"{plan.seed} {host_index}")  # noqa: S311
    mean_seconds = plan.mean_seconds_between_faults or _DAY_SECONDS / (FAULTS_PER_DEVICE_DAY * device_count)
    kinds, shares = list(plan.mix), list(plan.mix.values())
    at_seconds = random.expovariate(1.0 / mean_seconds)
    count = 0
    while at_seconds < plan.duration_seconds:
        count += 1
        if count > MOST_PLANNED:
            raise BadPlan(f"more than {MOST_PLANNED} faults on a host; shorten duration_seconds or give them more time")
        kind, device_index = random.choices(kinds, shares)[0], random.randrange(device_count)
        yield PlannedFault(
            host_index,
            FaultRequest(
                kind,
                device_index=None if KINDS[kind].loses_host else device_index,
                after_seconds=round(at_seconds, 3),
                for_seconds=plan.for_seconds,
                seed=random.randrange(2**32),
            ),
        )
        at_seconds += random.expovariate(1.0 / mean_seconds)


def parse_plan(text: str) -> FaultPlan:
    """The plan of a TOML file; BadPlan."""
    try:
        written = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadPlan(f"it is no TOML: {escape_controls(str(error) or 'nested too deeply')}") from None
    known = set(FaultPlan.__slots__)
    for key in written:
        if key not in known:
            raise BadPlan(f"{_shown(key)} is no key of a plan; there are {', '.join(sorted(known))}")
    seed = written.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= LARGEST_SEED:
        raise BadPlan(f"seed: {_shown(seed)} is no seed; give a whole number from 0")
    return FaultPlan(
        seed,
        _seconds(written, "duration_seconds") or FaultPlan().duration_seconds,
        _seconds(written, "mean_seconds_between_faults"),
        _seconds(written, "for_seconds"),
        _mix(written.get("mix")),
    )


def _seconds(written: Mapping[str, object], key: str) -> float | None:
    value = written.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_SECONDS:
        raise BadPlan(f"{key}: {_shown(value)} is no number of seconds; give more than 0, at most a year")
    return float(value)


def _mix(value: object) -> Mapping[str, float]:
    if value is None:
        return USUAL_MIX
    if not isinstance(value, dict) or not value:
        raise BadPlan("mix: give a table of kinds and their shares, such as mix = { dma-abort = 1 }")
    for kind, share in value.items():
        if kind not in KINDS:
            raise BadPlan(f"mix: {_shown(kind)} is no kind of fault; see neuron-fault kinds")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1e9:
            raise BadPlan(f"mix.{kind}: {_shown(share)} is no share; give a number above 0")
    return {str(kind): float(share) for kind, share in value.items()}


def _shown(value: object) -> str:
    return error_excerpt(repr(value) if not isinstance(value, str) else value)
