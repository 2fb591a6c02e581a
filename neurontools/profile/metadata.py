"""Whose profile it is, by which clock, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

DEVICE_TIME = "times are of the simulated device (CPU)"


@dataclass(frozen=True, slots=True)
class Metadata:
    """The worker that a profile is of.

    Times of a profile are nanoseconds since 1970 by the host's clock when the profile began, going on with
    CLOCK_MONOTONIC: workers of one host (one `boot_id`) can be laid side by side exactly.
    `cores` are numbers on the host, of logical cores that are so many physical ones each as
    `logical_neuroncore_config` says (None: unknown); `hbm_limit_bytes` is that of one core. `device_time` says of what
    device times are.
    """

    worker: str
    rank: int
    local_rank: int
    world_size: int
    pid: int
    host: str
    boot_id: str
    instance_type: str | None
    cores: tuple[int, ...]
    device_name: str
    hbm_limit_bytes: int | None
    began_ns: int
    script: str = ""
    torch_version: str = ""
    written_by: str = ""
    device_time: str = DEVICE_TIME
    logical_neuroncore_config: int | None = None


@dataclass(frozen=True, slots=True)
class State:
    """How far a profile came; the last one in a file holds.

    `has_ended`: the worker ended its profile; else it died, or runs still. `recorded` counts the rows by table that
    there were, `dropped` those that a bounded profile let go of, oldest first. Totals have all of them.
    `hbm_peak_bytes` is by core, as in `Metadata.cores`.
    """

    ended_ns: int = 0
    has_ended: bool = False
    recorded: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    hbm_peak_bytes: tuple[int, ...] = ()
    failure: str | None = None
