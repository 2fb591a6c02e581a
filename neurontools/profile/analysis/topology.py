"""Where the ranks of a run sat: the devices of their cores, and the links that their collectives used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from neurontools import catalog
from neurontools.profile import Engine, Profile, ProfileMetadata, SpanKind
from neurontools.profile.analysis.operators import executed_operators


class Link(StrEnum):
    """The slowest connection between the ranks of a run, which their collectives have to cross."""

    DEVICE = "within one device"
    NEURONLINK = "over NeuronLink"
    NETWORK = "over the network"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The host, the cores and the devices of a rank. `devices` is empty if the instance type is unknown."""

    rank: int
    host: str
    cores: tuple[int, ...]
    devices: tuple[int, ...]
    collective_bytes: int  # bytes that its collectives reduced or gathered, in the whole profile


@dataclass(frozen=True, slots=True)
class Topology:
    ranks: tuple[RankPlace, ...]
    link: Link | None  # None for one rank, or if devices are unknown


def device_of(about: ProfileMetadata, core: int) -> int | None:
    """Returns the device of a logical core on its host; None if the instance type is unknown."""
    if about.instance_type is None:
        return None
    try:
        cores_per_device = catalog.load(about.instance_type).logical_cores_per_device(about.logical_neuroncore_config)
    except (KeyError, ValueError):
        return None
    return core // cores_per_device


def find_topology(profiles: Sequence[Profile]) -> Topology:
    ranks = tuple(map(_rank_place, profiles))
    hosts = {(each.metadata.host, each.metadata.boot_id) for each in profiles}
    devices = {device for rank in ranks for device in rank.devices}
    if len(ranks) < 2:
        return Topology(ranks, None)
    if len(hosts) > 1:
        return Topology(ranks, Link.NETWORK)
    if not all(rank.devices for rank in ranks):
        return Topology(ranks, None)
    return Topology(ranks, Link.NEURONLINK if len(devices) > 1 else Link.DEVICE)


def _rank_place(profile: Profile) -> RankPlace:
    about = profile.metadata
    devices = dict.fromkeys(device for core in about.cores if (device := device_of(about, core)) is not None)
    in_graphs = sum(
        count * operator.bytes
        for operator, count, _, _ in executed_operators(profile)
        if operator.engine is Engine.COLLECTIVES
    )
    on_host = sum(max(0, row.bytes) for row in profile.span_totals if row.kind == SpanKind.COLLECTIVE)
    return RankPlace(about.rank, about.host, about.cores, tuple(devices), in_graphs + on_host)
