"""The documents that the tools of neuron-mcp return: those of `--json`, or some of their keys."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from neurontools import free_cores
from neurontools.cli.ls.queries import parse_age
from neurontools.cli.mcp.host_access import HostAccess
from neurontools.cli.top.documents import SnapshotSource
from neurontools.client.samples import HostQuantity
from neurontools.model import Snapshot, health
from neurontools.model.health import describe_finding
from neurontools.profile import Profile
from neurontools.profile.analysis.report import build_report, latest_run
from neurontools.profile.chunks import SUFFIX
from neurontools.profile.reader import read_profile
from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.terminal import error_excerpt
from neurontools.util.units import devices_text, ranges_text
from neurontools.views.drawing.figures import DeviceFilter, Figures
from neurontools.views.history_document import QUANTITIES_OF_PROCESSES, core_range, history_document
from neurontools.views.ls_reports import EndedReport, ended_json, health_json
from neurontools.views.process_filter import InvalidFilter, parse_filter
from neurontools.views.profile_document import profile_document
from neurontools.views.top_document import top_document

Arguments = Mapping[str, Any]
"""Arguments of a tool, checked against its parameters. Those that the client left out are missing or None."""

_HEAD = ("schema_version", "taken_at", "instance_type", "instance_id", "source", "synthetic_load", "warnings")
_LONG_PARTS_OF_PROCESSES = ("operators", "advice", "models", "served_models")
_LONG_PARTS_OF_HOSTS = ("devices", "jobs")
_MOST_PROFILE_BYTES, _MOST_UNPACKED_BYTES = 256 << 20, 1 << 30
_MOST_SUMMARY_BYTES = 16 << 20
_MOST_RANKS = 256


def list_hosts(access: HostAccess, arguments: Arguments) -> Any:
    found = asdict(access.fleet_document())
    hosts = found["hosts"]
    if arguments.get("only_problems"):
        hosts = [host for host in hosts if host["health"] != "ok"]
    found["hosts"] = [_without(host, _LONG_PARTS_OF_HOSTS) for host in hosts[arguments.get("offset") or 0 :]]
    return _without(found, ("jobs", "groups"))


def list_devices(access: HostAccess, arguments: Arguments) -> Any:
    keys = ("average_utilization_ratio", "flops_per_second", "device_memory", "host_memory", "devices", "neuroncores")
    return _top_part(_selected(access, arguments), keys)


def list_processes(access: HostAccess, arguments: Arguments) -> Any:
    snapshot = _selected(access, arguments)
    text = arguments.get("filter")
    pids = None
    if text:
        try:
            passes = parse_filter(text)
        except InvalidFilter as error:
            raise UserError(f"filter: {error}", EXIT_USAGE) from error
        pids = [pid for pid, figures in Figures(snapshot).by_pid.items() if passes(figures)]
    found = _top_part(snapshot, ("processes", "users"), pids)
    found["processes"] = [_without(process, _LONG_PARTS_OF_PROCESSES) for process in found["processes"]]
    return found


def show_process(access: HostAccess, arguments: Arguments) -> Any:
    pid = arguments["pid"]
    found = _top_part(access.snapshot(arguments.get("host")), ("processes", "jobs"), [pid])
    if not found["processes"]:
        raise UserError(f"no process {pid} holds NeuronCores; list_processes has those that do", EXIT_NOT_FOUND)
    return found


def list_problems(access: HostAccess, arguments: Arguments) -> Any:
    snapshot = _selected(access, arguments)
    verdicts = health.verdicts(snapshot)
    return json.loads(health_json(verdicts, snapshot))


def explain_finding(access: HostAccess, arguments: Arguments) -> Any:
    """Returns the findings of a kind, and the devices, processes and jobs that they concern."""
    kind = arguments["kind"]
    snapshot = access.snapshot(arguments.get("host"))
    found = () if snapshot.health is None else snapshot.health.findings
    chosen = [finding for finding in found if kind.lower() in (str(finding.kind), health.finding_name(finding).lower())]
    if not chosen:
        kinds = ", ".join(dict.fromkeys(str(finding.kind) for finding in found)) or "none"
        raise UserError(f"no finding {error_excerpt(kind)} on this host; it has: {kinds}", EXIT_NOT_FOUND)
    pids = {pid for finding in chosen for pid in (*finding.pids, *([finding.pid] if finding.pid else ()))}
    devices = {index for finding in chosen for index in finding.device_indices}
    document = _top_part(snapshot, ("devices", "processes", "jobs"), sorted(pids))
    document["devices"] = [device for device in document["devices"] if device["neuron_device"] in devices]
    return {"findings": [describe_finding(finding) for finding in chosen], **document}


def list_jobs(access: HostAccess, arguments: Arguments) -> Any:
    host = arguments.get("host")
    if access.fleet and host is None:
        return _without(asdict(access.fleet_document()), ("hosts", "groups"))
    return _top_part(access.snapshot(host), ("jobs", "host_findings"))


def get_history(access: HostAccess, arguments: Arguments) -> Any:
    name, pid = arguments["quantity"], arguments.get("pid")
    device, core = arguments.get("device_index"), arguments.get("neuroncore")
    if name in QUANTITIES_OF_PROCESSES and (device is not None or core is not None):
        raise UserError(f"{name} is a quantity of processes; give pid instead of a device or core", EXIT_USAGE)
    window_seconds = 60.0 * arguments["minutes"]
    with access.client(arguments.get("host")) as client:
        timeline = next(SnapshotSource(client.socket_path, None, 1.0).timelines(None))
    snapshot = timeline.snapshot(-1)
    cores = Figures(snapshot).cores
    if core is not None and device is None:
        device = next((each.device_index for each in cores if each.index == core), None)
    if core is not None and not any(each.index == core and each.device_index == device for each in cores):
        raise UserError(f"no NeuronCore {core} here; list_devices has those of the host", EXIT_NOT_FOUND)
    if device is not None:
        _check_device(snapshot, device)
    if pid is not None and pid not in {process.pid for process in snapshot.processes}:
        raise UserError(f"no process {pid} on this host now; list_processes has those there are", EXIT_NOT_FOUND)
    ranges = () if device is None else (core_range(snapshot, cores, device, core),)
    found = history_document(
        timeline.series(len(timeline) - 1),
        snapshot,
        HostQuantity(name, ranges, pid),
        window_seconds=window_seconds,
        point_count=arguments["points"],
        device_index=device,
        core_index=core,
    )
    return asdict(found)


def list_ended(access: HostAccess, arguments: Arguments) -> Any:
    user = arguments.get("user")
    if user is not None and not access.hiding.shows_users:
        raise UserError("users are hidden here; leave user out", EXIT_USAGE)
    asked_since = max(0.0, time.time() - parse_age(arguments["since"])) if arguments.get("since") else 0.0
    with access.client(arguments.get("host")) as client:
        ended = client.ended(asked_since)
    since = max(asked_since, ended.known_since_unix_seconds)
    chosen = [each for each in ended.processes if user is None or user in (each.user, str(each.uid))]
    found = json.loads(ended_json(EndedReport(access.hiding.ended(chosen), since, user)))
    found["processes"].reverse()  # a limit leaves out the oldest
    return found


def summarize_profile(access: HostAccess, arguments: Arguments) -> Any:
    path, rank = arguments["path"], arguments.get("rank")
    with access.open_path(path) as (above, name):
        profiles = latest_run(_read_profiles(path, above, name))
    chosen = [each for each in profiles if rank is None or each.metadata.rank == rank]
    if not chosen:
        there = ranges_text(each.metadata.rank for each in profiles)
        raise UserError(f"no profile of rank {rank}; it has those of rank {there}", EXIT_NOT_FOUND)
    return asdict(profile_document(build_report(chosen)))


def _read_profiles(path: str, above: int, name: str) -> list[Profile]:
    """Reads a file of a profile, or all those in a directory, through descriptors and no links."""
    with ExitStack() as stack:
        names = [name]
        if stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            above = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            stack.callback(os.close, above)
            names = sorted(each for each in os.listdir(above) if each.endswith(SUFFIX))  # noqa: PTH208
        size = sum(os.stat(each, dir_fd=above, follow_symlinks=False).st_size for each in names)
        if not names or len(names) > _MOST_RANKS or size > _MOST_PROFILE_BYTES:
            problem = f"{len(names)} profiles of {size >> 20} MiB"
            limits = f"give a directory with 1 to {_MOST_RANKS}, of at most {_MOST_PROFILE_BYTES >> 20} MiB"
            raise UserError(f"{error_excerpt(path)}: {problem}; {limits}", EXIT_USAGE)
        most_bytes = _MOST_UNPACKED_BYTES // len(names)
        return [read_profile(each, directory=above, most_unpacked_bytes=most_bytes) for each in names]


def estimate_run(access: HostAccess, arguments: Arguments) -> Any:
    from neurontools.cli.run.summary import EstimateRequest

    path = arguments["path"]
    try:
        summary = json.loads(access.read_file(path, _MOST_SUMMARY_BYTES))
    except (ValueError, RecursionError):
        summary = None
    if not isinstance(summary, dict):
        raise UserError(f"{error_excerpt(path)}: no summary of neuron-run; write one with --summary-json", EXIT_USAGE)
    request = EstimateRequest.from_options({"estimate": arguments["instance_types"]}, arguments.get("epoch_samples"))
    text = request.of_run(summary)
    if not summary["estimates"]:
        raise UserError(text.removeprefix("neuron-run: ").strip(), EXIT_USAGE)
    return {"estimates": summary["estimates"]}


def find_free_cores(access: HostAccess, arguments: Arguments) -> Any:
    count = arguments["count"]
    snapshot = access.snapshot(arguments.get("host"))
    found = free_cores.select(snapshot, count, device_indices=_device_indices(snapshot, arguments))
    return {
        "neuron_rt_visible_cores": None if found is None else str(found),
        "free_neuroncore_count": len(free_cores.free_indices(snapshot)),
        "logical_neuroncore_config": snapshot.instance.logical_neuroncore_config,
    }


def _top_part(snapshot: Snapshot, keys: Collection[str], pids: list[int] | None = None) -> dict[str, Any]:
    """Returns some keys of the document of `neuron-top --json`, after those that say what it is of."""
    found = asdict(top_document(snapshot, pids))
    return {key: found[key] for key in (*_HEAD, *keys)}


def _without(document: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in keys}


def _selected(access: HostAccess, arguments: Arguments) -> Snapshot:
    """Returns the snapshot of the host, with the selected devices and the processes on them."""
    snapshot = access.snapshot(arguments.get("host"))
    indices = _device_indices(snapshot, arguments)
    return DeviceFilter(frozenset(indices)).filter_snapshot(snapshot) if indices else snapshot


def _device_indices(snapshot: Snapshot, arguments: Arguments) -> list[int]:
    indices: list[int] = list(dict.fromkeys(arguments.get("devices") or ()))
    for index in indices:
        _check_device(snapshot, index)
    return indices


def _check_device(snapshot: Snapshot, index: int) -> None:
    known = snapshot.devices_by_index
    if index not in known:
        raise UserError(f"no device {index} on this host; it has {devices_text(known)}", EXIT_NOT_FOUND)
