"""`neuron-fault plan FILE`: tells the story of a plan and has the daemons play it."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from neurontools.cli.fault import text
from neurontools.faults.plan import BadPlan, FaultPlan, PlannedFault, parse_plan, story
from neurontools.fleet.hosts import Reach, read_hostfile
from neurontools.rpc import fault_calls, neuron_pb2
from neurontools.rpc.ask import ask
from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt

_MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class PlannedHost:
    """A host of a plan: its name, the socket of its daemon, and how many devices it has."""

    name: str
    socket_path: str
    device_count: int


def read_plan(path: str) -> FaultPlan:
    """The plan of a file; UserError when it can't be read or meant."""
    at = excerpt(path, 200)
    try:
        with open(path, "rb", opener=_opened) as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"{at}: there is no such file; give a plan in TOML", EXIT_NOT_FOUND) from None
    except OSError as error:
        raise UserError(f"{at}: {error.strerror}; give a readable file", EXIT_USAGE) from None
    if len(data) > _MOST_BYTES:
        raise UserError(f"{at}: is larger than {_MOST_BYTES >> 20} MiB, and no plan", EXIT_USAGE)
    try:
        return parse_plan(data.decode())
    except UnicodeDecodeError:
        raise UserError(f"{at}: is no text in UTF-8; give a plan in TOML", EXIT_USAGE) from None
    except BadPlan as error:
        raise UserError(f"{at}: {error}", EXIT_USAGE) from None


def planned_host(name: str, socket_path: str) -> PlannedHost:
    """A host as its daemon describes it."""
    reply = ask(socket_path, "/neurontools.v1.MonitorService/GetSnapshot", b"", fault_calls.TIMEOUT_SECONDS)
    instance = neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot.instance
    return PlannedHost(name, socket_path, instance.device_count)


def planned_hosts(hostfile: str) -> list[PlannedHost]:
    """The hosts of a hostfile, which must be at sockets of this machine."""
    found = read_hostfile(hostfile)
    if found.troubles:
        raise UserError(f"--hostfile {found.troubles[0]}", EXIT_USAGE)
    for place in found.places:
        if place.reach is not Reach.SOCKET:
            raise UserError(
                f"--hostfile: {place.name} is no simulated host of this machine; give unix:/path", EXIT_USAGE
            )
    return [planned_host(place.name, place.address) for place in found.places]


def planned_story(file: str, plan: FaultPlan, hosts: Sequence[PlannedHost]) -> tuple[PlannedFault, ...]:
    """What happens on these hosts; UserError when it is too much."""
    try:
        return story(plan, [host.device_count for host in hosts])
    except BadPlan as error:
        raise UserError(f"{excerpt(file, 200)}: {error}", EXIT_USAGE) from None


def play(told: Sequence[PlannedFault], hosts: Sequence[PlannedHost]) -> None:
    """Hands the story over to the daemons, which play it."""
    for index, host in enumerate(hosts):
        requests = [each.request for each in told if each.host_index == index]
        if requests:
            fault_calls.inject(host.socket_path, requests)


def story_text(told: Sequence[PlannedFault], hosts: Sequence[PlannedHost]) -> str:
    """The story, a line each."""
    if not told:
        return "nothing breaks in this time\n"
    rows = [("AT", "HOST", "DEVICE", "KIND")]
    for each in told:
        request = each.request
        device = "-" if request.device_index is None else str(request.device_index)
        rows.append((text.clock(each.at_seconds), hosts[each.host_index].name, device, request.kind))
    return text.aligned(rows)


def story_documents(told: Sequence[PlannedFault], hosts: Sequence[PlannedHost]) -> list[dict[str, object]]:
    """The story for programs."""
    return [
        {
            "at_seconds": each.at_seconds,
            "host": hosts[each.host_index].name,
            "device_index": each.request.device_index,
            "kind": each.request.kind,
            "for_seconds": each.request.for_seconds,
            "seed": each.request.seed,
        }
        for each in told
    ]


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(21, "it is a directory")
    return descriptor
