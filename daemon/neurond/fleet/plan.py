"""Which hosts a simulated fleet has: pure, and the same for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from neurond.load import SCENARIOS
from neurond.settings import Settings
from neurontools import catalog
from neurontools.fleet.hosts import Place, Reach

USUAL_MIX = (
    "trn1.32xlarge/steady=8,trn1.32xlarge=3,trn2.48xlarge/steady=5,trn2u.48xlarge/training-ramp=4,"
    "inf2.48xlarge=2,trn1.32xlarge/stuck-core=1,trn2.48xlarge/ecc-burst=1"
)
MOST_HOSTS = 2000
_HISTORY_SECONDS, _HISTORY_BYTES = 120.0, 2**20  # of each of many
_HIGHEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Kind:
    """Hosts of a mix: their type and what runs on them, with their share."""

    instance_type: str
    scenario: str | None
    weight: int


@dataclass(frozen=True, slots=True)
class HostPlan:
    """One host of the fleet."""

    place: Place
    settings: Settings


def parse_mix(text: str) -> tuple[Kind, ...]:
    """The kinds of `TYPE[/SCENARIO][=WEIGHT],…`; ValueError says in a line what is wrong."""
    kinds = []
    for part in filter(None, map(str.strip, text.split(","))):
        named, equals, weight = part.partition("=")
        name, slash, scenario = named.partition("/")
        if equals and not (weight.isascii() and weight.isdigit() and len(weight) < 7 and int(weight)):
            raise ValueError(f"{part[:60]!r}: give a share as a whole number from 1, such as trn1.32xlarge=3")
        if slash and scenario not in SCENARIOS:
            raise ValueError(
                f"{part[:60]!r}: there is no scenario {scenario[:40]!r}; give one of {', '.join(SCENARIOS)}"
            )
        kinds.append(Kind(catalog.load(name).name, scenario or None, int(weight) if equals else 1))
    if not kinds:
        raise ValueError("names no instance type; write TYPE/SCENARIO=SHARE, such as trn1.32xlarge/steady=3")
    return tuple(kinds)


def plan(
    host_count: int,
    mix: tuple[Kind, ...],
    directory: str,
    *,
    seed: int = 0,
    interval_seconds: float = 1.0,
    first_metrics_port: int | None = None,
) -> tuple[HostPlan, ...]:
    """The hosts, by name. Those of UltraServer types are nodes of UltraServers us-1, us-2 and so on, in their order."""
    if first_metrics_port is not None and first_metrics_port + host_count - 1 > _HIGHEST_PORT:
        raise ValueError(f"there are no {host_count} ports from {first_metrics_port} on")
    kinds = [kind for kind, count in zip(mix, _shares(host_count, mix), strict=True) for _ in range(count)]
    random.Random(seed).shuffle(kinds)  # noqa: S311 - a seed, so that it can be had again
    digits = max(3, len(str(host_count - 1)))
    places = [
        Place(name, Reach.SOCKET, f"{directory}/{name}.sock")
        for name in (f"host-{number:0{digits}d}" for number in range(host_count))
    ]
    nodes = _nodes(kinds)
    return tuple(
        HostPlan(
            place,
            Settings(
                socket=place.address,
                interval_seconds=interval_seconds,
                history_seconds=_HISTORY_SECONDS,
                history_bytes=_HISTORY_BYTES,
                log_level="error",
                simulate=kind.instance_type,
                ultraserver=nodes[number],
                load=kind.scenario,
                load_seed=seed + number,
                metrics_listen=None if first_metrics_port is None else f"127.0.0.1:{first_metrics_port + number}",
            ),
        )
        for number, (place, kind) in enumerate(zip(places, kinds, strict=True))
    )


def _shares(host_count: int, mix: tuple[Kind, ...]) -> list[int]:
    """How many hosts of each kind: by weight, the largest remainders rounded up, the first of equals."""
    whole = sum(kind.weight for kind in mix)
    counts = [host_count * kind.weight // whole for kind in mix]
    by_remainder = sorted(range(len(mix)), key=lambda at: (-(host_count * mix[at].weight % whole), at))
    for at in by_remainder[: host_count - sum(counts)]:
        counts[at] += 1
    return counts


def _nodes(kinds: list[Kind]) -> list[str | None]:
    """The place in an UltraServer of each host, NAME:INDEX; None for types that are in none."""
    nodes: list[str | None] = []
    made = 0
    filling: dict[str, tuple[str, int]] = {}  # by type: the UltraServer that has room, and its next node
    for kind in kinds:
        ultraserver = catalog.load(kind.instance_type).ultraserver
        if ultraserver is None:
            nodes.append(None)
            continue
        if kind.instance_type not in filling:
            made += 1
            filling[kind.instance_type] = f"us-{made}", 0
        name, index = filling.pop(kind.instance_type)
        nodes.append(f"{name}:{index}")
        if index + 1 < ultraserver.node_count:
            filling[kind.instance_type] = name, index + 1
    return nodes
