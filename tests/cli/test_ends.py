"""How every command ends: closed and full streams, readers that went away, signals, faults."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from neurontools.client.recording import RecordingWriter
from tests.harness.command import Done
from tests.harness.paths import ROOT
from tests.harness.python_process import PIPES
from tests.harness.running_daemon import RunningDaemon
from tests.harness.waiting import AWAIT_INPUT, HANG_SECONDS, run_to_end

NEURON_LS = [sys.executable, str(ROOT / "scripts/neuron-ls")]
NEURON_TOP = [sys.executable, str(ROOT / "scripts/neuron-top")]
NEURON_MONITOR = [sys.executable, "-m", "neurontools.cli.monitor.command"]
PROMETHEUS = [sys.executable, "-m", "neurontools.cli.monitor.prometheus"]
# A command that prints something, each by another way to standard output.
PRINTING = {
    "neuron-ls": [*NEURON_LS, "-a"],
    "neuron-ls --loop": [*NEURON_LS, "--loop", "0.05", "-n", "2"],
    "neuron-ls --version": [*NEURON_LS, "--version"],
    "neuron-top --once": [*NEURON_TOP, "--once"],
    "neuron-top --json-lines": [*NEURON_TOP, "--json-lines", "-n", "2", "-i", "0.05"],
    "neuron-monitor": [*NEURON_MONITOR, "-n", "2"],
    "neuron-monitor-prometheus": [*PROMETHEUS, "--help"],
    "neuron-profile": [sys.executable, "-m", "neurontools.cli.profile.command", "--json-schema"],
    "neuron-run": [sys.executable, "-m", "neurontools.cli.run.command", "--completion", "bash"],
    "neurond": [sys.executable, "-m", "neurond", "--help"],
}
AT_WORK = {
    "neuron-ls": [*NEURON_LS, "--loop", "0.05", "--query", "index", "--format", "json"],
    "neuron-top": [*NEURON_TOP, "--json-lines"],
    "neuron-monitor": NEURON_MONITOR,
    "neuron-monitor-prometheus": [*PROMETHEUS, "--port", "0", "--enable-k8s-info"],
}
UNWRITABLE = "can't write to standard output: {}; free space or write elsewhere\n"
FAULT = (
    r"neuron-x: internal error: KeyError: '\x1b[2J' (<string>:3); set NEURONTOOLS_TRACEBACK=1 for the traceback; "
    "please report it"
)
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM, signal.SIGHUP: -signal.SIGHUP}


def slow_but(fast: str, names: Iterable[str]) -> list[Any]:
    """These as parameters, of which all but one are slow."""
    return [pytest.param(name, marks=() if name == fast else pytest.mark.slow) for name in names]


def ended(name: str, daemon: RunningDaemon, redirection: str) -> Done:
    """The command, run by a shell with this redirection."""
    return run_to_end(
        ["bash", "-c", f'exec "$@" {redirection}', "bash", *PRINTING[name]],
        env={**os.environ, "NEURONTOOLS_SOCKET": daemon.socket},
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("redirection", "cause"),
    [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device"), (">&- 2>&-", "")],
)
@pytest.mark.parametrize("name", slow_but("neuron-ls", PRINTING))
def test_standard_output_that_takes_nothing(
    name: str, redirection: str, cause: str, shared_daemon: RunningDaemon
) -> None:
    done = ended(name, shared_daemon, redirection)
    told = f"{name.partition(' ')[0]}: {UNWRITABLE.format(cause)}" if cause else ""
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize(
    "name", slow_but("neuron-ls", ("neuron-ls", "neuron-top --json-lines", "neuron-monitor", "neurond"))
)
def test_standard_error_that_takes_nothing_is_no_matter(
    name: str, redirection: str, shared_daemon: RunningDaemon
) -> None:
    done = ended(name, shared_daemon, redirection)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n")


@pytest.mark.parametrize("name", slow_but("neuron-monitor", PRINTING))
def test_a_reader_that_went_away(name: str, shared_daemon: RunningDaemon) -> None:
    readable, writable = os.pipe()
    os.close(readable)
    try:
        done = subprocess.run(
            PRINTING[name],
            env={**os.environ, "NEURONTOOLS_SOCKET": shared_daemon.socket},
            stdin=subprocess.DEVNULL,
            stdout=writable,
            stderr=subprocess.PIPE,
            timeout=HANG_SECONDS,
            check=False,
        )
    finally:
        os.close(writable)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("name", slow_but("neuron-monitor", AT_WORK))
def test_signals(name: str, number: signal.Signals, shared_daemon: RunningDaemon) -> None:
    with subprocess.Popen(
        AT_WORK[name],
        env={**os.environ, "NEURONTOOLS_SOCKET": shared_daemon.socket},
        **PIPES,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("{}\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) is not None  # it is at work
        process.send_signal(number)
        assert process.wait(HANG_SECONDS) == SIGNALS[number]
        assert re.sub(r"neuron-monitor-prometheus: a line is skipped: .*\n", "", process.stderr.read()) == ""


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_to_one_that_waits_for_an_answer(number: signal.Signals, socket_directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.settimeout(HANG_SECONDS)
        silent.bind(f"{socket_directory}/silent.sock")
        silent.listen()
        process = subprocess.Popen(
            [*NEURON_LS, "--socket", f"{socket_directory}/silent.sock"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(3) == b"PRI"
            process.send_signal(number)
            assert process.communicate(timeout=HANG_SECONDS) == (b"", b"")
    assert process.returncode == SIGNALS[number]


def wrapper(name: str) -> list[str]:
    """What an installer writes for a command."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        module, _, function = tomllib.load(file)["project"]["scripts"][name].partition(":")
    return [sys.executable, "-c", f"from {module} import {function}; {function}()"]


IMPORTS = {
    **dict.fromkeys(("neuron-ls", "neuron-top"), "neurontools.cli"),
    **dict.fromkeys((f"neuron-{name}" for name in ("run", "monitor", "profile", "fault")), "neurontools.cli.line"),
    "neuron_parallel_compile": "neurontools.cli.run",
    "neuron-fleet-sim": "neurond.fleet.command",
    "neurond": "neurond.startup",
}


@pytest.mark.parametrize("name", slow_but("neuron-monitor", IMPORTS))
def test_interrupted_while_it_is_imported(name: str, tmp_path: Path) -> None:
    """A module that is imported early and stops there, as a slow disk may."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == '{IMPORTS[name]}':\n"
        f"            print('here', flush=True); exec({AWAIT_INPUT!r})\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    with subprocess.Popen(
        {"neuron-ls": NEURON_LS, "neuron-top": NEURON_TOP}.get(name) or wrapper(name),
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}:{ROOT}/daemon"},
        **PIPES,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=HANG_SECONDS) == ("", "")
    assert process.returncode == 130


def test_a_recording_that_fills_the_disk(tmp_path: Path, shared_daemon: RunningDaemon) -> None:
    header = RecordingWriter(str(tmp_path / "header"))
    header.close()
    path = tmp_path / "full.neurec"
    room_bytes = header.bytes_written + 100
    done = subprocess.run(
        [*NEURON_TOP, "--json-lines", "--record", str(path)],
        # Python leaves a file of bytecode that is cut at the limit, and later processes fail with it.
        env={**os.environ, "NEURONTOOLS_SOCKET": shared_daemon.socket, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, room_bytes)),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"neuron-top: --record {path}: File too large; what was recorded until then can be replayed\n"


def framed(work: str, **environment: str) -> Callable[..., Done]:
    """A command that consists of this expression."""
    imports = "import os, sys\nfrom neurontools.util.command_lifecycle import run_command\n"
    code = f"{imports}run_command('neuron-x', lambda arguments: {work})"

    def run(**changes: Any) -> Done:
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONUNBUFFERED": "", **environment},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            **changes,
        )

    return run


@pytest.mark.parametrize(
    ("work", "code", "told"),
    [
        ("3", 3, ""),
        ("sys.exit(4)", 4, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no luck')", 1, "neuron-x: no luck"),
        ("open('/none/x')", 1, "neuron-x: /none/x: No such file or directory; look at its disk and permissions"),
        ("bytearray(2**60)", 1, "neuron-x: out of memory; end other programs, or give it more"),
        ("os.kill(os.getpid(), 2)", 130, ""),
        (r"{}['\x1b[2J']", 70, FAULT),
    ],
)
def test_what_the_frame_tells(work: str, code: int, told: str) -> None:
    done = framed(work)()
    assert (done.returncode, done.stderr) == (code, f"{told}\n" if told else "")
    if code == 70:
        traceback = framed(work, NEURONTOOLS_TRACEBACK="1")().stderr.splitlines()
        assert traceback[0] == "Traceback (most recent call last):"
        assert traceback[-2:] == [r"KeyError: '\x1b[2J'", told]


AFTER_A_SIGNAL = """
import os, signal
from neurontools.util.command_lifecycle import run_command
def work(arguments):
    try:
        os.kill(os.getpid(), {number})
    finally:
        {then}
    return 0
run_command("neuron-x", work)
"""
CLEANS = "os.kill(os.getpid(), signal.SIGHUP); print('cleaned', flush=True)"


@pytest.mark.parametrize(
    ("number", "then", "output"),
    [
        (signal.SIGTERM, CLEANS, "cleaned\n"),
        *((number, "raise RuntimeError('release unlocked lock')", "") for number in SIGNALS),
    ],
    ids=["a second signal", *(f"a failure after {number.name}" for number in SIGNALS)],
)
def test_what_happens_in_the_wake_of_a_signal_changes_nothing(number: signal.Signals, then: str, output: str) -> None:
    """A second signal does not interrupt the cleaning that the first began, and what fails there is no fault."""
    command = [sys.executable, "-c", AFTER_A_SIGNAL.format(number=int(number), then=then)]
    done = run_to_end(command)
    assert (done.returncode, done.stdout, done.stderr) == (SIGNALS[number], output, "")


def test_a_signal_that_is_ignored_stays_so() -> None:
    done = framed("os.kill(os.getpid(), 1) or 3")(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert (done.returncode, done.stderr) == (3, "")


def test_what_libraries_print_has_the_same_ends() -> None:
    printing = framed("sys.stdout.buffer.write(b'x') - 1")
    with Path("/dev/full").open("wb") as full:
        done = printing(stdout=full)
    assert (done.returncode, done.stderr) == (1, f"neuron-x: {UNWRITABLE.format('No space left on device')}")
    readable, writable = os.pipe()
    os.close(readable)
    done = printing(stdout=writable)
    os.close(writable)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")
