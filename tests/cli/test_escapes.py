"""Text of others (commands, tags, paths, variables) reaches no output in a form that terminals or spreadsheets obey."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google.protobuf
import pytest

from neurontools.cli.top.options import PAGE_NAMES
from neurontools.util.errors import EXIT_UNHEALTHY
from tests.harness.attached_child import TAG
from tests.harness.command import calls
from tests.harness.paths import ATTACHED_CHILD, ROOT
from tests.harness.running_daemon import RunningDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

PAYLOADS = (
    "\x1b]0;title\x07",
    "\x1b[2Jcleared",
    "\x9b31mred",
    "\u202etxt.exe",
    "good\rbad",
    "no\b\byes",
    "x\n=1+1",
    "=cmd|' /C calc'!A0",
    "\t@SUM(1)\u2028\x7f",
)


@dataclass
class HostileHost:
    """A daemon, and the payload by the PID of the attached process whose command begins with it, as its tag does."""

    daemon: RunningDaemon
    metrics_port: int
    payload_of: dict[int, str]

    def printed(self, command: str, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        """What a command writes to standard output; it says nothing else."""
        environment = {**os.environ, "NEURONTOOLS_SOCKET": self.daemon.socket, "COLUMNS": "200"}
        done = calls(command, environment)(*arguments)
        assert done.returncode in codes, done.stderr
        assert done.stderr == ""
        return done.stdout


@pytest.fixture(scope="module")
def host() -> Iterator[HostileHost]:
    directory = Path(tempfile.mkdtemp(prefix="nd-"))
    flags = ("--simulate", "trn1.32xlarge", "--interval", "0.05", "--metrics-listen", "127.0.0.1:0")
    daemon = RunningDaemon(directory / "n.sock", flags, {})
    # A process whose name is a payload doesn't know where its interpreter is installed.
    packages = str(Path(google.protobuf.__file__).parents[2])
    environment = {"PYTHONPATH": f"{ROOT}:{packages}", "PYTHONHOME": sys.base_prefix, "PYTHONUTF8": "1"}
    children = [
        subprocess.Popen(
            [payload, str(ATTACHED_CHILD), daemon.socket, "1"],
            executable=sys.executable,
            env={**environment, TAG: payload},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for payload in PAYLOADS
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline()
        payload_of = {child.pid: payload for child, payload in zip(children, PAYLOADS, strict=True)}
        wait_until(lambda: all(daemon.find(pid) is not None for pid in payload_of))
        port = re.search(r"metrics on http://127\.0\.0\.1:(\d+)", daemon.log)
        assert port is not None
        yield HostileHost(daemon, int(port[1]), payload_of)
        assert_harmless(daemon.log)
    finally:
        for child in children:
            child.communicate()
        daemon.process.kill()
        daemon.process.wait()
        shutil.rmtree(directory)


def seen(payload: str) -> str:
    """A payload as psutil reads it from a command line: in text mode, which makes a CR a line end."""
    return payload.replace("\r", "\n")


def assert_harmless(text: str) -> None:
    """Nothing but lines of characters that are drawn."""
    assert [line for line in text.split("\n") if not line.isprintable()] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("neuron-ls", "-w", "-a", "-t"),
        ("neuron-ls", "--health"),
        *(("neuron-top", "--once", "--page", page) for page in PAGE_NAMES),
    ],
    ids=" ".join,
)
def test_text(host: HostileHost, arguments: tuple[str, ...]) -> None:
    # Whether the host is well is not asked: none of these processes reports, which is a finding in time.
    text = host.printed(*arguments, codes=(0, EXIT_UNHEALTHY) if "--health" in arguments else (0,))
    assert_harmless(text)
    if arguments[-1] in ("-t", "processes"):
        assert r"\x1b[2Jcleared" in text


def test_text_in_colours(host: HostileHost) -> None:
    text = host.printed("neuron-top", "--once", "--page", "processes", "--color", "always")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert plain != text
    assert_harmless(plain)


@pytest.mark.parametrize(
    "arguments",
    [("neuron-top", "--csv"), ("neuron-ls", "--query", "process.pid,process.tag,process.command", "--format", "csv")],
    ids=" ".join,
)
def test_csv(host: HostileHost, arguments: tuple[str, ...]) -> None:
    text = host.printed(*arguments)
    assert_harmless(text)
    header, *rows = csv.reader(io.StringIO(text))
    # A row each, with the payload in it; the same to a reader that knows nothing of quoted line ends.
    assert len(text.splitlines()) == len(rows) + 1
    of_ours = [row for row in rows if any(str(pid) in row for pid in host.payload_of)]
    assert len(of_ours) == len(PAYLOADS)
    assert {len(row) for row in rows} == {len(header)}
    cells = {cell for row in of_ours for cell in row}
    assert "'=cmd|' /C calc'!A0" in cells
    assert [cell for cell in cells if cell.lstrip().startswith(("=", "+", "@")) or re.match(r"\s*-\D", cell)] == []


def test_json_has_the_data_as_it_is(host: HostileHost) -> None:
    documents = {
        "top": host.printed("neuron-top", "--json"),
        "lines": host.printed("neuron-top", "--json-lines", "-n", "1"),
        "query": host.printed("neuron-ls", "--query", "process.pid,process.tag,process.command", "--format", "json"),
        "ls": host.printed("neuron-ls", "-j"),
        "monitor": host.printed("neuron-monitor", "-1"),
    }
    for text in documents.values():
        assert_harmless(text)
    for name in ("top", "lines"):
        found = {process["pid"]: process for process in json.loads(documents[name])["processes"]}
        for pid, payload in host.payload_of.items():
            assert found[pid]["command"].startswith(f"{seen(payload)} {ATTACHED_CHILD} ")
            assert found[pid]["tag"] == payload
    rows = {row["process_pid"]: row for row in json.loads(documents["query"]) if row["process_pid"] is not None}
    assert {pid: row["process_tag"] for pid, row in rows.items()} == host.payload_of
    commands = {
        process["pid"]: process["command"]
        for device in json.loads(documents["ls"])
        for process in device["neuron_processes"]
    }
    assert all(commands[pid].startswith(seen(payload)) for pid, payload in host.payload_of.items())
    runtimes = json.loads(documents["monitor"])["neuron_runtime_data"]
    assert {runtime["pid"]: runtime["neuron_runtime_tag"] for runtime in runtimes} == host.payload_of


def test_metrics(host: HostileHost) -> None:
    for accept in ("text/plain", "application/openmetrics-text; version=1.0.0"):
        request = urllib.request.Request(f"http://127.0.0.1:{host.metrics_port}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as reply:
            text = reply.read().decode()
        assert_harmless(text)
        assert "cleared" in text


HOSTILE = "".join(PAYLOADS)
ERRORS = f"""
neuron-ls --socket %|neuron-ls %|neuron-ls --%|neuron-ls --device %|neuron-ls --query %
neuron-top --replay %|neuron-top --filter %|neuron-top --theme %|neuron-top --socket /none --record % --json
neuron-monitor -c %|neuron-monitor --verbose %|neuron-monitor-prometheus --address %
neuron-run %|neuron-run --cores % {__file__}|neurond --config %|neurond %|neurond --socket /none --simulate %
NEURONTOOLS_SOCKET=% neuron-ls|NEURON_LOGICAL_NC_CONFIG=% neuron-ls
"""


@pytest.mark.parametrize("line", ERRORS.strip().replace("\n", "|").split("|"))
def test_errors_are_one_harmless_line(line: str) -> None:
    variable, _, rest = line.rpartition("=% ")
    command, *arguments = (word.replace("%", HOSTILE) for word in rest.split())
    done = calls(command, os.environ)(*arguments, **({variable: HOSTILE} if variable else {}))
    assert done.stdout == ""
    assert done.stderr.startswith(f"{command}: ")
    assert done.stderr.count("\n") == 1
    assert_harmless(done.stderr)
    assert done.returncode not in (0, 70)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "last"),
    [
        (("--socket", f"/proc/{HOSTILE}/x"), "neurond: "),
        (("--socket", "{}/n.sock", "--export-sysfs", f"/proc/{HOSTILE}"), "neurond: --export-sysfs: "),
    ],
    ids=["socket", "tree"],
)
def test_a_daemon_that_fails_with_a_hostile_name(socket_directory: Path, flags: tuple[str, ...], last: str) -> None:
    given = [flag.replace("{}", str(socket_directory)) for flag in flags]
    command = [sys.executable, "-m", "neurond", "--simulate", "trn1.2xlarge", *given]
    done = subprocess.run(command, capture_output=True, check=False)
    told = done.stderr.decode()
    assert done.returncode not in (0, 70)
    assert_harmless(told)
    assert "Traceback" not in told
    assert told.splitlines()[-1].startswith(last)
