"""Where the ranks of a run sat, and the bytes that they moved over each link between devices and hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from neurontools import catalog
from neurontools.profile import Profile, ProfileMetadata, SpanKind
from neurontools.profile.analysis.operators import executed_operators


class LinkKind(StrEnum):
    """The connection between two cores, devices or hosts."""

    DEVICE = "within the device"
    NEURONLINK = "NeuronLink"
    NETWORK = "network"
    HOST = "PCIe"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A device of a host; `device` is None for the host itself, or if the device is unknown."""

    host: str
    device: int | None


@dataclass(frozen=True, slots=True)
class LinkUse:
    """The bytes that moved over a link in the whole profile. Data between devices counts in both directions.

    Copies between host and device go from `source` to `target`. A link of the network connects two hosts. `kind` is
    None if the devices are unknown.
    """

    kind: LinkKind | None
    source: Place
    target: Place
    bytes: int


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The host, the cores and the devices of a rank. `devices` is empty if the instance type is unknown."""

    rank: int
    host: str
    cores: tuple[int, ...]
    devices: tuple[int, ...]

    @property
    def place(self) -> Place:
        """The device of the first core, from which a worker sends its data."""
        return Place(self.host, self.devices[0] if self.devices else None)


@dataclass(frozen=True, slots=True)
class Topology:
    """The places of the ranks, and the used links, the most bytes first."""

    ranks: tuple[RankPlace, ...]
    links: tuple[LinkUse, ...]

    @property
    def collective_bytes(self) -> dict[LinkKind | None, int]:
        """The bytes that collectives sent by kind of link, the most bytes first; {} if there were none."""
        totals: Counter[LinkKind | None] = Counter()
        for link in self.links:
            if link.kind is not LinkKind.HOST:
                totals[link.kind] += link.bytes
        return dict(totals.most_common())


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
    """Finds the places of all ranks, and the links between them. Leaves out data for ranks without a profile."""
    ranks = {each.metadata.rank: _rank_place(each.metadata) for each in profiles}
    totals: Counter[tuple[LinkKind | None, Place, Place]] = Counter()
    for profile in profiles:
        own = ranks[profile.metadata.rank].place
        for peer, size in _sent(profile):
            if peer in ranks:
                totals[_link_between(own, ranks[peer].place)] += size
        for row in profile.span_totals:
            host = Place(own.host, None)
            if row.bytes > 0 and row.kind == SpanKind.TO_DEVICE:
                totals[LinkKind.HOST, host, own] += row.bytes
            elif row.bytes > 0 and row.kind == SpanKind.FROM_DEVICE:
                totals[LinkKind.HOST, own, host] += row.bytes
    links = tuple(LinkUse(*link, size) for link, size in totals.most_common())
    return Topology(tuple(ranks[rank] for rank in sorted(ranks)), links)


def _rank_place(about: ProfileMetadata) -> RankPlace:
    devices = dict.fromkeys(device for core in about.cores if (device := device_of(about, core)) is not None)
    return RankPlace(about.rank, about.host, about.cores, tuple(devices))


def _sent(profile: Profile) -> Iterator[tuple[int, int]]:
    for operator, count, _, _ in executed_operators(profile):
        for peer, size in zip(operator.peers, operator.sent_bytes, strict=True):
            yield peer, count * size


def _link_between(source: Place, target: Place) -> tuple[LinkKind | None, Place, Place]:
    if source.host != target.host:
        first, second = sorted((source.host, target.host))
        return LinkKind.NETWORK, Place(first, None), Place(second, None)
    if source.device is None or target.device is None:
        return None, source, target
    kind = LinkKind.DEVICE if source.device == target.device else LinkKind.NEURONLINK
    first_device, second_device = sorted((source.device, target.device))
    return kind, Place(source.host, first_device), Place(source.host, second_device)
