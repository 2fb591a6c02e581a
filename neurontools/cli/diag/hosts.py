"""`neuron-diag --hosts`: runs neuron-diag on many hosts at once, and reports the worst host first."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NotRequired

from typing_extensions import TypedDict

from neurontools.diagnose.results import EXIT_NOT_KNOWN, EXIT_TEST_FAILED
from neurontools.diagnose.table import BETWEEN_HOSTS
from neurontools.fleet.feed import SSH_OPTIONS, ssh_command
from neurontools.fleet.hosts import HostAddress, Reach
from neurontools.util.terminal import excerpt
from neurontools.util.units import byte_rate_text, counted, ranges_text
from neurontools.util.version import __version__

REMOTE_VARIABLE = "NEURONTOOLS_REMOTE_DIAG"
"""Environment variable that sets the neuron-diag command to run on the other host."""
_MOST_BY_SSH = 32  # hosts at a time
_CONNECT_SECONDS = 30.0  # added to the time limit of a run, for ssh and the start of the command
_END_SECONDS = 10.0
_MOST_REPORT_BYTES = 16 << 20
_MOST_ERROR_BYTES = 4096
_LONGEST_TEXT = 500
_MOST_LINES = 4  # problems of a host in the text
_NO_RUN_BY_TLS = "neuron-diag runs on the host itself, which grpcs:// does not allow; name the host to reach it by SSH"


class HostOutcome(StrEnum):
    """Outcome of a host or of a transfer between hosts, the worst first."""

    FAIL = "fail"
    LOST = "lost"  # gave no report
    NOT_RUN = "could not run"
    WARN = "warn"
    PASS = "pass"  # noqa: S105 - no password
    SKIP = "skip"  # no host has it


_ORDER = [*HostOutcome]
_COUNTED = {"fail": "failed", "lost": "lost", "could not run": "not known", "warn": "with a warning", "pass": "passed"}


@dataclass(frozen=True, slots=True)
class HostRun:
    """The run on one host. `report` is the document of `neuron-diag --json` there; None if there is none."""

    host: HostAddress
    outcome: HostOutcome
    summary: str
    report: Mapping[str, Any] | None = None


class HostRunDocument(TypedDict):
    """The run on one host. `report` is the document of `neuron-diag --json` there."""

    host: str
    address: str
    outcome: str
    summary: str
    report: NotRequired[dict[str, Any]]


class HostTransfer(TypedDict):
    """The transfer between two hosts. `bytes_per_second` is None if nothing was measured."""

    host: str
    peer: str
    outcome: str
    reason: str
    bytes_per_second: float | None
    simulated: bool | None


class HostsDocument(TypedDict):
    """The runs on many hosts, the worst host first, and the transfers between them."""

    version: str
    exit_code: int
    summary: str
    problems: list[str]
    hosts: list[HostRunDocument]
    links: list[HostTransfer]


def run_on_hosts(
    hosts: Sequence[HostAddress], options: Sequence[str], timeout_seconds: float, progress: Callable[[str], None]
) -> list[HostRun]:
    """Runs neuron-diag with these options on all hosts, and returns the runs, the worst first.

    At most 32 hosts by SSH run at a time, and as many on this computer as it has CPUs.
    """
    runs = asyncio.run(_run_all(hosts, options, timeout_seconds + _CONNECT_SECONDS, progress))
    return sorted(runs, key=lambda run: (_ORDER.index(run.outcome), run.host.name))


def exit_code(runs: Sequence[HostRun], links: Sequence[HostTransfer], problems: Sequence[str]) -> int:
    """Returns EXIT_TEST_FAILED if a test failed, else EXIT_NOT_KNOWN if a host or link has no result, else 0.

    `problems` are errors in the names of hosts; such hosts have no result.
    """
    outcomes = {run.outcome for run in runs} | {HostOutcome(link["outcome"]) for link in links}
    if HostOutcome.FAIL in outcomes:
        return EXIT_TEST_FAILED
    return EXIT_NOT_KNOWN if problems or outcomes & {HostOutcome.LOST, HostOutcome.NOT_RUN} else 0


def summary_of(runs: Sequence[HostRun]) -> str:
    """Summarizes the runs, such as "4 hosts: 1 failed, 1 lost, 2 passed"."""
    counts = {outcome: sum(run.outcome is outcome for run in runs) for outcome in HostOutcome}
    parts = [f"{count} {_COUNTED[outcome]}" for outcome, count in counts.items() if count]
    return f"{counted(len(runs), 'host')}: {', '.join(parts)}"


def hosts_document(runs: Sequence[HostRun], links: Sequence[HostTransfer], problems: Sequence[str]) -> HostsDocument:
    documents: list[HostRunDocument] = []
    for run in runs:
        document = HostRunDocument(
            host=run.host.name, address=run.host.text, outcome=str(run.outcome), summary=run.summary
        )
        if run.report is not None:
            document["report"] = dict(run.report)
        documents.append(document)
    return HostsDocument(
        version=__version__,
        exit_code=exit_code(runs, links, problems),
        summary=summary_of(runs),
        problems=[*problems],
        hosts=documents,
        links=[*links],
    )


def hosts_text(runs: Sequence[HostRun], links: Sequence[HostTransfer]) -> str:
    """Returns the runs as text: a line for each host, and below it its first problems with their next steps.

    A line for each transfer between hosts follows, the worst first.
    """
    widths = [
        max(len(text) for text in texts) + 2 for texts in zip(*((r.host.name, r.outcome) for r in runs), strict=True)
    ]
    lines = []
    for run in runs:
        lines.append(f"{run.host.name:<{widths[0]}}{run.outcome:<{widths[1]}}{run.summary}")
        lines += [f"{'':<{widths[0]}}{line}" for line in _problem_lines(run.report or {})]
    proves = dict.fromkeys(excerpt(str(run.report["proves"]), _LONGEST_TEXT) for run in runs if run.report is not None)
    lines += map(_link_text, sorted(links, key=lambda link: _ORDER.index(HostOutcome(link["outcome"]))))
    return "\n".join((*lines, summary_of(runs), *proves, ""))


def _link_text(link: HostTransfer) -> str:
    rate = ""
    if link["bytes_per_second"] is not None:
        mark = ", between simulated hosts" if link["simulated"] else ""
        rate = f" ({byte_rate_text(link['bytes_per_second'])}{mark})"
    return f"{BETWEEN_HOSTS}  {link['outcome']}  {link['host']}, {link['peer']}: {link['reason']}{rate}"


def _problem_lines(report: Mapping[str, Any]) -> list[str]:
    """Returns the problems in a report, each with its next step. Problems that differ only in the place are one."""
    places: dict[tuple[str, str, str], set[int]] = {}
    for result in report.get("results", ()):
        if result["outcome"] in (HostOutcome.FAIL, HostOutcome.NOT_RUN, HostOutcome.WARN):
            mark = " [injected]" if result.get("injected") is True else ""
            key = (f"{result['outcome']}: {result['test']}", f"{result['reason']}{mark}", str(result["action"] or ""))
            index = result["device_index"]
            places.setdefault(key, set()).update([index] if isinstance(index, int) else [])
    ordered = sorted(places.items(), key=lambda item: _ORDER.index(HostOutcome(item[0][0].partition(":")[0])))
    lines = []
    for (name, reason, action), devices in ordered[:_MOST_LINES]:
        place = f" on device{'s' if len(devices) > 1 else ''} {ranges_text(sorted(devices))}" if devices else ""
        lines.append(excerpt(f"{name}{place}: {reason}", _LONGEST_TEXT))
        lines += [f"  do: {excerpt(action, _LONGEST_TEXT)}"] if action else []
    more = len(ordered) - _MOST_LINES
    return [*lines, f"and {more} more; see --json"] if more > 0 else lines


async def _run_all(
    hosts: Sequence[HostAddress], options: Sequence[str], limit_seconds: float, progress: Callable[[str], None]
) -> list[HostRun]:
    slots = {
        Reach.SSH: asyncio.Semaphore(_MOST_BY_SSH),
        Reach.SOCKET: asyncio.Semaphore(os.cpu_count() or 1),
        Reach.TLS: asyncio.Semaphore(1),
    }
    done = 0

    async def run(host: HostAddress) -> HostRun:
        nonlocal done
        async with slots[host.reach]:
            found = await _run_on_host(host, options, limit_seconds)
        done += 1
        progress(f"{done} of {len(hosts)} hosts done")
        return found

    try:
        return await asyncio.gather(*map(run, hosts))
    finally:
        progress("")


async def _run_on_host(host: HostAddress, options: Sequence[str], limit_seconds: float) -> HostRun:
    if host.reach is Reach.TLS:
        return HostRun(host, HostOutcome.NOT_RUN, _NO_RUN_BY_TLS)
    try:
        async with asyncio.timeout(limit_seconds), started(host, options) as process:
            output, errors = await read_outputs(process)
    except OSError as error:
        return HostRun(host, HostOutcome.LOST, f"ssh can't be started: {error.strerror}")
    except TimeoutError:
        return HostRun(host, HostOutcome.LOST, f"no report within {limit_seconds:g} s")
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return _judged(
        host, output, excerpt(lines[-1], 200) if lines else f"gave no report (exit code {process.returncode})"
    )


@contextlib.asynccontextmanager
async def started(host: HostAddress, options: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Starts neuron-diag with these options and --json on a host, and ends it after the context."""
    process = await asyncio.create_subprocess_exec(
        *_command(host, options),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C ends it through this process, and ssh must not ask for a password
    )
    try:
        yield process
    finally:
        await _end(process)


async def read_outputs(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """Returns standard output and standard error of a process after its end, each bounded."""
    assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - they are pipes
    reads = (_read(process.stdout, _MOST_REPORT_BYTES), _read(process.stderr, _MOST_ERROR_BYTES))
    outputs = await asyncio.gather(*reads)
    await process.wait()
    return outputs


def _command(host: HostAddress, options: Sequence[str]) -> list[str]:
    if host.reach is Reach.SOCKET:
        own = [sys.executable, "-P", "-m", "neurontools.cli.diag.command"]
        return [*own, "--json", "--socket", host.address, *options]
    remote = os.environ.get(REMOTE_VARIABLE, "").strip() or "neuron-diag"
    words = f"{remote} {shlex.join(['--json', *options])}"
    return [*ssh_command(os.environ), *SSH_OPTIONS, "--", host.address, words]


async def _read(stream: asyncio.StreamReader, most_bytes: int) -> bytes:
    """Returns the first `most_bytes` of a stream. Also reads the rest, so that its writer does not block."""
    data = b""
    while chunk := await stream.read(1 << 16):
        data += chunk[: most_bytes - len(data)]
    return data


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _judged(host: HostAddress, output: bytes, reason: str) -> HostRun:
    """Judges the output of a run. Without a report, the host is lost for this reason."""
    try:
        report = json.loads(output)
        code, summary, results = report["exit_code"], report["summary"], report["results"]
        outcomes = {HostOutcome(each["outcome"]) for each in results if each["outcome"] != "skip"}
        texts = [each[key] for each in results for key in ("test", "reason")]
        _ = report["proves"], [(each["device_index"], each["action"]) for each in results]  # KeyError if missing
        if code not in (0, EXIT_TEST_FAILED, EXIT_NOT_KNOWN) or not all(isinstance(each, str) for each in texts):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        return HostRun(host, HostOutcome.LOST, reason)
    if report.get("instance_type") is None and host.reach is Reach.SOCKET:
        return HostRun(host, HostOutcome.LOST, excerpt(str(results[0]["reason"]), _LONGEST_TEXT))
    if code == EXIT_TEST_FAILED:
        outcome = HostOutcome.FAIL
    elif code == EXIT_NOT_KNOWN:
        outcome = HostOutcome.NOT_RUN
    else:
        outcome = HostOutcome.WARN if HostOutcome.WARN in outcomes else HostOutcome.PASS
    return HostRun(host, outcome, excerpt(str(summary), _LONGEST_TEXT), report)
