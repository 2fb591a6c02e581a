"""`neuron-ls` for many hosts: prints a table or the findings, with one exit code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from neurontools.cli.daemon.fleet import open_fleet_feed
from neurontools.cli.line import HOST_OPTION_NAMES, exclude_each_other
from neurontools.fleet.document import document, document_json
from neurontools.fleet.states import HostLink, HostState, by_name, worst_first
from neurontools.model import Severity
from neurontools.model.health import marked_reason, no_verdicts_text
from neurontools.util.command_lifecycle import write_stderr, write_text
from neurontools.util.errors import EXIT_HEALTH_UNKNOWN, EXIT_NO_DAEMON, EXIT_UNHEALTHY, EXIT_USAGE, UserError
from neurontools.util.formats import Column, ascii_table
from neurontools.util.terminal import escape_controls, excerpt
from neurontools.util.units import UNKNOWN, count_text, ranges_text

_LONGEST_REASON = 100  # characters of the table; --health prints the whole reason
_GO_WITH = frozenset(
    (*HOST_OPTION_NAMES, "prometheus-config", "json-output", "health", "tls-cert", "tls-key", "tls-ca")
)


def print_fleet(given: dict[str, str]) -> int:
    """Prints the table, the findings or a JSON document. Returns the exit code for the worst host."""
    exclude_each_other(given, *HOST_OPTION_NAMES)
    for name in given:
        if name not in _GO_WITH:
            raise UserError(f"--{name} is for one host; leave it out, or look at that host with --socket", EXIT_USAGE)
    feed, wrong = open_fleet_feed(given)
    with feed:
        feed.start()
        feed.wait_settled()
        states, jobs, models, problems = feed.states, feed.jobs, feed.models, (*wrong, *feed.notes)
    for problem in problems:
        write_stderr(f"neuron-ls: {problem}")
    if "json-output" in given:
        now = time.monotonic()
        fleet_document = document(by_name(states), now, time.time(), problems, jobs=jobs, models=models)
        write_text(document_json(fleet_document, indent=2) + "\n")
    elif "health" in given:
        write_text(fleet_health_text(states))
    else:
        write_text(fleet_table(by_name(states)))
    if "health" in given:
        return _health_exit_code(states)
    return 0 if states and all(state.link is HostLink.LIVE for state in states) else EXIT_NO_DAEMON


def fleet_table(states: Sequence[HostState]) -> str:
    """Returns a table with one row per host; `-` marks an unknown value."""

    def text(state: HostState, name: str) -> str:
        return escape_controls(getattr(state.summary, name, None) or "-")

    def count(state: HostState, name: str) -> str:
        return count_text(getattr(state.summary, name, None))

    cells: dict[tuple[str, str], Callable[[HostState], str]] = {
        ("HOST", ""): lambda state: escape_controls(state.place.name),
        ("INSTANCE", "TYPE"): lambda state: text(state, "instance_type"),
        ("NEURON", "DEVICES"): _device_count,
        ("NEURON", "CORES"): lambda state: count(state, "neuroncore_count"),
        ("NEURON", "CORES HELD"): lambda state: count(state, "held_neuroncore_count"),
        ("NEURON", "CORES FREE"): lambda state: count(state, "free_neuroncore_count"),
        ("HEALTH", ""): health_word,
        ("DRIVER", "VERSION"): lambda state: text(state, "driver_version"),
    }
    return ascii_table([Column(title, read) for title, read in cells.items()], [[state] for state in states])


def _device_count(state: HostState) -> str:
    """Returns the number of devices: "16", or "15 of 16" if a device is missing."""
    devices = state.summary.devices if state.summary else ()
    present = sum(cell.is_present for cell in devices)
    return UNKNOWN if not devices else f"{present}" if present == len(devices) else f"{present} of {len(devices)}"


def health_word(state: HostState) -> str:
    """Returns the highest severity among a host's findings, or why its health is unknown."""
    if state.link is not HostLink.LIVE:
        return excerpt(state.loss_reason or "no answer in time", _LONGEST_REASON)
    return "not known" if state.severity is None else state.severity.name.lower()


def fleet_health_text(states: Sequence[HostState]) -> str:
    """Returns the findings of all hosts as text, worst host first, and a summary line."""
    lines = []
    for state in worst_first(states):
        name = state.place.name
        found = state.summary
        if state.link is not HostLink.LIVE or found is None:
            lines.append(f"{name}: not known: {state.loss_reason or 'no answer in time'}")
            continue
        if not found.is_judged:
            lines.append(f"{name}: not known: {no_verdicts_text(found.daemon_version)}")
        elif unread := [device.index for device in found.devices if device.severity is None]:
            where = f"device{'s' if len(unread) > 1 else ''} {ranges_text(unread)}"
            lines.append(f"{name}: {where}: not known: neuron-ls --health tells why there")
        for finding in found.findings:
            indices = finding.device_indices
            where = f" device{'s' if len(indices) > 1 else ''} {ranges_text(indices)}:" if indices else ""
            lines.append(f"{name}:{where} {finding.severity.name.lower()}: {marked_reason(finding)}")
        more = found.critical_count + found.warning_count + found.notice_count - len(found.findings)
        if more > 0:
            lines.append(f"{name}: and {more} more findings, which neuron-ls --health tells there")
    sick = sum(state.severity is not None and state.severity >= Severity.WARNING for state in states)
    unknown = sum(state.severity is None for state in states)
    count = len(states)
    if not count:
        lines.append("health not known: no host was read")
    elif not sick and not unknown:
        lines.append("1 host is healthy" if count == 1 else f"all {count} hosts are healthy")
    else:
        parts = [f"{sick} of {count} hosts unhealthy"] if sick else []
        parts += [f"health of {unknown} of {count} hosts not known"] if unknown else []
        lines.append("; ".join(parts))
    return "".join(f"{escape_controls(line)}\n" for line in lines)


def _health_exit_code(states: Sequence[HostState]) -> int:
    severities = [state.severity for state in states]
    if any(severity is not None and severity >= Severity.WARNING for severity in severities):
        return EXIT_UNHEALTHY
    return EXIT_HEALTH_UNKNOWN if None in severities or not severities else 0
