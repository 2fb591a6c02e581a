"""`neuron-fault`: injects faults into simulated devices, lists and heals them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from neurontools.cli.daemon.connection import ask_first_daemon
from neurontools.cli.line import (
    END_CODES,
    FILES,
    INFORMATION_OPTIONS,
    SOCKET_OPTION,
    Option,
    exclude_each_other,
    parse_options,
    print_information,
    whole_number,
)
from neurontools.faults.kinds import KINDS, FaultKind
from neurontools.faults.requests import (
    FAULT_STATE_TEXTS,
    FaultPlan,
    FaultRequest,
    ImpossibleFault,
    InvalidFaultPlan,
    PlannedFault,
    describe_fault,
    fault_location,
    fault_schedule,
    parse_plan,
    schedule_faults,
)
from neurontools.fleet.hosts import Reach, read_hostfile
from neurontools.model import InjectedFault
from neurontools.rpc import fault_calls, neuron_pb2, socket_path
from neurontools.rpc.ask import ask
from neurontools.util.command_lifecycle import run_command, write_text
from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.formats import json_text
from neurontools.util.terminal import error_excerpt, excerpt

OPTIONS = (
    Option("device", "into this device", short="d", value="N"),
    Option("core", "into this NeuronCore, a logical one under the host's default", short="c", value="N"),
    Option("pid", "into the NeuronCores of this process", short="p", value="PID"),
    Option("after-executions", "fail the execution after this many good ones; default: the next", value="N"),
    Option("after", "start the fault after this many seconds", value="SECONDS"),
    Option("for", "end the fault after this many seconds", value="SECONDS"),
    Option("probability", "the probability that an execution fails; default: 1", value="P"),
    Option("amount", "the amount, for kinds that have one; the action kinds lists them", value="X"),
    Option("part", "the part of the device, for kinds that affect only a part", value="NAME"),
    Option("peer", "the device at the other end of the link, for kinds that affect a link", value="N"),
    Option("seed", "the seed of --probability; the same seed fails the same executions; default: 0", value="N"),
    Option("dry-run", "with plan: print the planned faults and inject none"),
    Option("hostfile", "of plan: on the hosts of this file, as of neuron-fleet-sim", value="FILE", completes=FILES),
    Option("json", "of inject, list, kinds and plan: a JSON document instead of text", short="j"),
    SOCKET_OPTION,
    *INFORMATION_OPTIONS,
)
USAGE = """neuron-fault inject KIND --device N | --core N | --pid PID [options]
       neuron-fault list | heal [NUMBER ...] | kinds | plan FILE"""
SUMMARY = (
    "Injects faults into simulated Neuron devices. Counters, logs and training processes show them as on hardware."
)
NOTES = """\
Only hosts that neurond simulates have faults, and only the user who runs neurond may inject them. All their effects
are marked as injected. heal without numbers removes all faults and their effects.
"""
EXIT_CODES = (
    (0, "success"),
    (1, "an option is unknown, the devices are real, or the command failed"),
    (2, "the kind, a number or a combination of options is invalid; nothing was injected"),
    (4, "this user may not use the socket, or may not inject faults"),
    (6, "the device, NeuronCore, process or fault does not exist"),
    (12, "no daemon answers"),
    (124, "the daemon did not answer in time"),
    *END_CODES,
)


_COMMAND = "neuron-fault"
# Names of fields of FaultRequest, by the name of the option that sets the field.
_WHOLE_FIELDS = {
    "device": "device_index",
    "core": "neuroncore_index",
    "pid": "pid",
    "after-executions": "after_executions",
    "seed": "seed",
    "peer": "peer_device_index",
}
_NUMBER_FIELDS = {"after": "after_seconds", "for": "for_seconds", "probability": "probability", "amount": "amount"}

T = TypeVar("T")


def main() -> None:
    run_command(_COMMAND, _run_fault)


def _run_fault(arguments: list[str]) -> int:
    first_flag = next((at for at, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    words = arguments[:first_flag]
    given = parse_options(OPTIONS, arguments[first_flag:])
    if print_information(_COMMAND, sys.modules[__name__], given):
        return 0
    verb, *rest = words or [""]
    if verb not in _VERBS:
        problem = f"{error_excerpt(verb)} is none of" if verb else "no action given; give one of"
        raise UserError(f"{problem} {', '.join(_VERBS)}; see --help", EXIT_USAGE)
    _VERBS[verb](rest, given)
    return 0


def _inject_fault(words: list[str], given: dict[str, str]) -> None:
    if len(words) != 1:
        raise UserError("inject needs one kind of fault, such as hbm-uncorrectable; see neuron-fault kinds", EXIT_USAGE)
    for name in ("dry-run", "hostfile"):
        if name in given:
            raise UserError(f"--{name} is not for inject; leave it out", EXIT_USAGE)
    request = request_of(words[0], given)
    injected = _ask_daemon(given, lambda path: fault_calls.inject(path, (request,)))
    _write(given, map(_fault_document, injected), "".join(f"{describe_fault(fault)}\n" for fault in injected))


def _list_faults(words: list[str], given: dict[str, str]) -> None:
    _refuse_other_options(given, "list", words)
    faults = _ask_daemon(given, fault_calls.list_faults)
    _write(given, map(_fault_document, faults), fault_table(faults))


def _write(given: dict[str, str], documents: Iterable[dict[str, object]], text: str) -> None:
    write_text(json_text(list(documents), indent=2) + "\n" if "json" in given else text)


def _heal_faults(words: list[str], given: dict[str, str]) -> None:
    _refuse_other_options(given, "heal", ())
    numbers = [whole_number("heal", word, 0) for word in words]
    count = _ask_daemon(given, lambda path: fault_calls.heal(path, numbers))
    write_text("no faults to heal\n" if not count else f"healed {count} fault{'' if count == 1 else 's'}\n")


def _list_kinds(words: list[str], given: dict[str, str]) -> None:
    _refuse_other_options(given, "kinds", words)
    _write(given, kind_documents(), kind_table())


def _run_plan(words: list[str], given: dict[str, str]) -> None:
    if len(words) != 1:
        raise UserError("plan needs one file, in TOML", EXIT_USAGE)
    _refuse_other_options(given, "plan", (), "dry-run", "hostfile")
    exclude_each_other(given, "hostfile", "socket")
    plan = read_plan(words[0])
    if "hostfile" in given:
        hosts = planned_hosts(given["hostfile"])
    else:
        hosts = [_ask_daemon(given, lambda path: planned_host("this host", path))]
    try:
        faults = schedule_faults(plan, [host.device_count for host in hosts])
    except InvalidFaultPlan as error:
        raise UserError(f"{excerpt(words[0], 200)}: {error}", EXIT_USAGE) from None
    if "dry-run" not in given:
        for index, host in enumerate(hosts):
            requests = [each.request for each in faults if each.host_index == index]
            if requests:
                fault_calls.inject(host.socket_path, requests)
    _write(given, plan_documents(faults, hosts), plan_text(faults, hosts))


_VERBS = {"inject": _inject_fault, "list": _list_faults, "heal": _heal_faults, "kinds": _list_kinds, "plan": _run_plan}


def request_of(kind: str, given: dict[str, str]) -> FaultRequest:
    exclude_each_other(given, "device", "core", "pid")
    exclude_each_other(given, "after-executions", "after")
    whole = {name: whole_number(f"--{flag}", given[flag], 0) for flag, name in _WHOLE_FIELDS.items() if flag in given}
    numbers = {name: _parse_number(given[flag], flag) for flag, name in _NUMBER_FIELDS.items() if flag in given}
    try:
        return FaultRequest(kind, **whole, **numbers, part=given.get("part"))  # type: ignore[arg-type]
    except ImpossibleFault as error:
        raise UserError(str(error), EXIT_USAGE) from None


def _refuse_other_options(given: dict[str, str], verb: str, words: list[str] | tuple[str, ...], *options: str) -> None:
    """Raises UserError for words or options that the subcommand does not take."""
    if words:
        raise UserError(f"{verb} takes no {error_excerpt(words[0])}; leave it out", EXIT_USAGE)
    more = [name for name in given if name not in ("json", "socket", *options)]
    if more:
        raise UserError(f"--{more[0]} is not for {verb}; leave it out", EXIT_USAGE)


def _ask_daemon(given: dict[str, str], ask: Callable[[str], T]) -> T:
    named = socket_path.configured_socket(given.get("socket"), os.environ)
    if named is not None:
        return ask(named)
    answer = ask_first_daemon(ask, os.environ)
    return ask(socket_path.candidate_sockets(os.environ)[0]) if answer is None else answer


def _parse_number(word: str, flag: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise UserError(f"--{flag}: {error_excerpt(word)} is no number", EXIT_USAGE) from None


def _fault_document(fault: InjectedFault) -> dict[str, object]:
    return {**asdict(fault), "state": fault.state.name.lower()}


_MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class PlannedHost:
    """A host for which faults are planned: its name, the socket of its daemon and its number of devices."""

    name: str
    socket_path: str
    device_count: int


def read_plan(path: str) -> FaultPlan:
    """Reads a fault plan from a file. Raises UserError if the file is unreadable or the plan is invalid."""
    at = excerpt(path, 200)
    try:
        with open(path, "rb", opener=_open_regular) as file:
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
    except InvalidFaultPlan as error:
        raise UserError(f"{at}: {error}", EXIT_USAGE) from None


def planned_host(name: str, socket_path: str) -> PlannedHost:
    """Returns a host of the plan. Asks its daemon for the number of devices."""
    reply = ask(socket_path, "/neurontools.v1.MonitorService/GetSnapshot", b"", fault_calls.TIMEOUT_SECONDS)
    instance = neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot.instance
    return PlannedHost(name, socket_path, instance.device_count)


def planned_hosts(hostfile: str) -> list[PlannedHost]:
    """Returns the hosts of a hostfile. Raises UserError if an entry is not a Unix socket."""
    found = read_hostfile(hostfile)
    if found.problems:
        raise UserError(f"--hostfile {found.problems[0]}", EXIT_USAGE)
    for place in found.places:
        if place.reach is not Reach.SOCKET:
            raise UserError(
                f"--hostfile: {place.name} is not a simulated host on this computer; give unix:/path", EXIT_USAGE
            )
    return [planned_host(place.name, place.address) for place in found.places]


def plan_text(faults: Sequence[PlannedFault], hosts: Sequence[PlannedHost]) -> str:
    if not faults:
        return "nothing breaks in this time\n"
    rows = [("AT", "HOST", "DEVICE", "KIND")]
    for each in faults:
        request = each.request
        device = "-" if request.device_index is None else str(request.device_index)
        rows.append((time_text(each.at_seconds), hosts[each.host_index].name, device, request.kind))
    return aligned_table(rows)


def plan_documents(faults: Sequence[PlannedFault], hosts: Sequence[PlannedHost]) -> list[dict[str, object]]:
    return [
        {
            "at_seconds": each.at_seconds,
            "host": hosts[each.host_index].name,
            "device_index": each.request.device_index,
            "kind": each.request.kind,
            "for_seconds": each.request.for_seconds,
            "seed": each.request.seed,
        }
        for each in faults
    ]


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(21, "it is a directory")
    return descriptor


def fault_table(faults: Sequence[InjectedFault]) -> str:
    if not faults:
        return "no faults\n"
    rows = [("FAULT", "KIND", "WHERE", "WHEN", "STATE", "MET")]
    rows += [
        (
            str(fault.number),
            fault.kind,
            fault_location(fault),
            fault_schedule(fault).removeprefix(", ") or "-",
            FAULT_STATE_TEXTS[fault.state],
            str(fault.met_total),
        )
        for fault in faults
    ]
    return aligned_table(rows)


def kind_table() -> str:
    rows = [("KIND", "STATUS", "WHAT IT IS")]
    rows += [(kind.name, _nrt_status_name(kind) or "-", kind.summary + _amount_text(kind)) for kind in KINDS.values()]
    return aligned_table(rows)


def kind_documents() -> list[dict[str, object]]:
    return [
        {
            "kind": kind.name,
            "summary": kind.summary,
            "an_execution_that_meets_it": str(kind.effect),
            "lasts": str(kind.lasts),
            "nrt_status": int(kind.status) if kind.status else None,
            "nrt_status_name": _nrt_status_name(kind),
            "log": [{"function": line.function, "text": line.text} for line in kind.log],
            "ecc_counters": list(kind.ecc),
            "status_counter": kind.counter,
            "kernel_error": kind.kernel_error,
            "unhealthy_component": kind.component,
            "findings": list(kind.findings),
            "found_within_seconds": kind.found_within_seconds,
            "amount": None
            if kind.amount is None
            else {name: getattr(kind.amount, name) for name in ("unit", "default", "least", "most")},
            "takes_part": kind.accepts_part,
            "source": kind.source or None,
        }
        for kind in KINDS.values()
    ]


def _nrt_status_name(kind: FaultKind) -> str | None:
    return f"NRT_{kind.status.name}" if kind.status else None


def _amount_text(kind: FaultKind) -> str:
    return "" if kind.amount is None else f" (amount: {kind.amount.unit}, default {kind.amount.default:g})"


def time_text(seconds: float) -> str:
    """Formats seconds since the start of a plan as H:MM:SS."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def aligned_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Formats rows of cells as a text table with aligned columns. The first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
