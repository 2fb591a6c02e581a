"""Commands and webhooks of the daemon: real programs, a real HTTP server, real findings."""

from __future__ import annotations

import http.server
import json
import os
import queue
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.actions.bounded_run import BoundedRun
from neurond.actions.rate_limit import RateLimit
from neurond.startup.configuration import resolve

from neurontools.errors import UserError
from neurontools.faults.request import FaultRequest
from neurontools.kernel_log.hardware_error import HardwareError
from neurontools.kernel_log.record import KernelRecord
from neurontools.rpc import faults
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

TAKES_NOTE = """#!/bin/sh
# Writes down what it is told and with what it was started.
cat >>"{directory}/told"
env >"{directory}/environment"
echo "$#" "$1" >"{directory}/arguments"
{more}
"""


class Host:
    """A simulated host whose kernel log the test writes, and a command that takes note of what it is told."""

    def __init__(self, directory: Path, start: StartDaemon) -> None:
        self.directory = directory
        self._start = start
        self.kernel_log = directory / "kmsg"
        self.kernel_log.touch()
        self.state = directory / "state"

    def program(self, more: str = "") -> Path:
        program = self.directory / "program"
        program.write_text(TAKES_NOTE.format(directory=self.directory, more=more))
        program.chmod(0o755)
        return program

    def start(self, actions: str, name: str = "n.sock") -> RunningDaemon:
        configuration = self.directory / "neurond.toml"
        configuration.write_text(f"[actions]\n{actions}\n")
        return self._start(
            *("--simulate", "trn1.32xlarge", "--interval", "0.05", "--kmsg", str(self.kernel_log)),
            *("--state-directory", str(self.state), "--config", str(configuration)),
            name=name,
        )

    def logs(self, *texts: str) -> None:
        with self.kernel_log.open("ab") as kernel:
            kernel.write(b"".join(KernelRecord(1, 1, text).line() for text in texts))

    def fails(self, name: str = "HBM_UNCORRECTABLE_ERROR", device: int = 3) -> None:
        self.logs(HardwareError(name, device, 0).text())

    def mends(self) -> None:
        self.logs("Neuron Driver Started with Version:2.30")

    def told(self) -> list[Any]:
        path = self.directory / "told"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def audit(self, event: str) -> list[Any]:
        lines = [json.loads(line) for line in (self.state / "audit.jsonl").read_text().splitlines()]
        return [line for line in lines if line["event"] == event]


@pytest.fixture
def host(tmp_path: Path, start_daemon: StartDaemon) -> Host:
    tmp_path.chmod(0o755)
    return Host(tmp_path, start_daemon)


def test_a_command_hears_of_what_begins_and_what_ends(host: Host) -> None:
    daemon = host.start(f'command = ["{host.program()}", "a b; $(reboot)"]')
    host.fails()
    wait_until(lambda: len(host.told()) == 1)
    host.mends()
    wait_until(lambda: len(host.told()) == 2)
    begun, ended = host.told()
    assert (begun["version"], begun["event"], ended["event"]) == (1, "begins", "ends")
    assert begun["key"] == ended["key"] == "kernel_error/(3,)/6/HBM_UNCORRECTABLE_ERROR"
    assert (begun["instance_id"], begun["source"]) == ("i-simulated", "simulated")
    finding = begun["finding"]
    assert (finding["name"], finding["problem"], finding["device_indices"]) == ("HBM_UNCORRECTABLE_ERROR", "node", [3])
    wait_until(lambda: len(host.audit("action")) == 2)  # what is read next is no longer written
    assert (host.directory / "arguments").read_text() == "1 a b; $(reboot)\n"
    names = {line.partition("=")[0] for line in (host.directory / "environment").read_text().splitlines()}
    assert names <= {"PATH", "LANG", "PWD", "SHLVL", "_", "OLDPWD", "SSL_CERT_FILE", "SSL_CERT_DIR"} | {
        name for name in os.environ if name.lower().endswith("_proxy")
    }
    daemon.stop()
    assert [line["outcome"] for line in host.audit("action")] == ["done", "done"]
    assert [line["name"] for line in host.audit("finding_begins")] == ["HBM_UNCORRECTABLE_ERROR"]
    assert [line["name"] for line in host.audit("finding_ends")] == ["HBM_UNCORRECTABLE_ERROR"]
    assert len(host.audit("daemon_begins")) == len(host.audit("daemon_ends")) == 1


def test_only_what_is_asked_for_is_told(host: Host) -> None:
    host.start(f'command = ["{host.program()}"]\nonly = ["DMA_ERROR"]\non = ["ends"]')
    host.fails("SRAM_UNCORRECTABLE_ERROR")
    host.fails("DMA_ERROR")
    wait_until(lambda: len(host.audit("finding_begins")) == 2)
    host.mends()
    wait_until(host.told)
    assert [(told["event"], told["finding"]["name"]) for told in host.told()] == [("ends", "DMA_ERROR")]


def test_a_command_that_fails_is_tried_again_and_one_that_hangs_is_ended(host: Host) -> None:
    flag = host.directory / "tried"
    more = f"[ -e {flag} ] || {{ touch {flag}; exit 3; }}"
    host.start(f'command = ["{host.program(more)}"]\nretries = 1')
    host.fails()
    wait_until(lambda: len(host.audit("action")) == 2)
    first, second = host.audit("action")
    assert (first["attempt"], first["outcome"], first["detail"]) == (1, "failed", "exit code 3")
    assert (second["attempt"], second["outcome"]) == (2, "done")


def test_what_hangs_is_ended_with_all_that_it_has_started(host: Host) -> None:
    child = host.directory / "child"
    more = f"sleep 600 & echo $! >{child}; wait"
    daemon = host.start(f'command = ["{host.program(more)}"]\nretries = 0\ntimeout_seconds = 5.0')
    host.fails()
    wait_until(lambda: host.audit("action"))
    assert host.audit("action")[0]["outcome"] == "timed_out"
    pid = int(child.read_text())
    wait_until(lambda: not _runs(pid))
    assert daemon.snapshot().sequence


def test_the_daemon_goes_on_and_ends_at_once_while_a_command_hangs(host: Host) -> None:
    child = host.directory / "child"
    daemon = host.start(f'command = ["{host.program(f"echo $$ >{child}; exec sleep 600")}"]\ntimeout_seconds = 600.0')
    host.fails()
    pid = int(wait_until(lambda: child.read_text() if child.exists() else ""))
    daemon.next_snapshot(5)
    assert daemon.stop() == 0
    wait_until(lambda: not _runs(pid))


def test_a_flood_of_findings_is_limited_and_that_is_said(host: Host) -> None:
    daemon = host.start(f'command = ["{host.program()}"]\nmost_per_hour = 2\non = ["begins"]')
    for device in range(16):
        host.fails(device=device)
    wait_until(lambda: len(host.audit("action")) == 16)
    outcomes = [line["outcome"] for line in host.audit("action")]
    assert (outcomes.count("done"), outcomes.count("rate_limited")) == (2, 14)
    assert len(host.told()) == 2
    assert daemon.log.count("more than 2 an hour") == 1


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.received.put((self.path, self.headers["Content-Type"], json.loads(body)))
        self.send_response(server.answers.pop(0) if server.answers else 200)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.received, server.answers = queue.Queue(), []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_is_posted_to_until_it_takes_it(host: Host, receiver: Any) -> None:
    receiver.answers = [500, 302]
    url = f"http://127.0.0.1:{receiver.server_port}/hook?secret=s3cr3t"
    daemon = host.start(f'webhook = "{url}"\nretries = 2')
    host.fails()
    posts = [receiver.received.get(timeout=HANG_SECONDS) for _ in range(3)]
    assert {path for path, _, _ in posts} == {"/hook?secret=s3cr3t"}, "redirections are not followed"
    assert posts[0][1] == "application/json"
    assert posts[0][2]["finding"]["name"] == "HBM_UNCORRECTABLE_ERROR"
    wait_until(lambda: len(host.audit("action")) == 3)
    assert [line["outcome"] for line in host.audit("action")] == ["failed", "failed", "done"]
    assert "status 500" in daemon.log
    assert "s3cr3t" not in daemon.log + (host.state / "audit.jsonl").read_text()


def test_a_webhook_that_nobody_answers_is_a_line_and_no_more(host: Host, port: int) -> None:
    daemon = host.start(f'webhook = "http://127.0.0.1:{port}/"\nretries = 0')
    host.fails()
    wait_until(lambda: "did not take" in daemon.log)
    wait_until(lambda: host.audit("action"))
    assert host.audit("action")[0]["outcome"] == "failed"
    daemon.next_snapshot()


def test_the_audit_has_who_held_which_cores(host: Host) -> None:
    daemon = host.start("")
    attachment = Attachment(daemon)
    attachment.attach(core_count=2)
    wait_until(lambda: daemon.find(os.getpid()))
    attachment.close()
    wait_until(lambda: host.audit("released"))
    attached, released = host.audit("attached")[-1], host.audit("released")[-1]
    assert (attached["pid"], attached["uid"], attached["neuroncores"]) == (os.getpid(), os.getuid(), "0-1")
    assert released["pid"] == os.getpid()
    daemon.stop(signal.SIGKILL)
    host.start("", name="m.sock")
    wait_until(lambda: len(host.audit("daemon_begins")) == 2)


def test_the_audit_has_what_was_injected_and_healed(host: Host) -> None:
    daemon = host.start("")
    (fault,) = faults.inject(daemon.socket, [FaultRequest("dma-abort", device_index=3)])
    wait_until(lambda: host.audit("fault_holds"))
    faults.heal(daemon.socket, [fault.number])
    (healed,) = wait_until(lambda: host.audit("fault_healed"))
    (injected,) = host.audit("fault_injected")
    assert (injected["number"], injected["kind"], injected["device_indices"]) == (fault.number, "dma-abort", [3])
    assert healed["number"] == fault.number
    me = os.getuid(), os.getpid()
    assert (injected["injected_by_uid"], injected["injected_by_pid"]) == me
    assert (healed["healed_by_uid"], healed["healed_by_pid"]) == me
    assert (healed["injected_by_uid"], healed["injected_by_pid"]) == me
    assert injected["at_unix_seconds"] <= healed["at_unix_seconds"]


def test_the_audit_has_faults_that_no_snapshot_has_shown(host: Host) -> None:
    daemon = host.start("")
    for _ in range(20):  # most of them begin and end before the next snapshot
        (fault,) = faults.inject(daemon.socket, [FaultRequest("dma-abort", device_index=3)])
        faults.heal(daemon.socket, [fault.number])
    wait_until(lambda: len(host.audit("fault_healed")) == 20)
    for event in ("fault_injected", "fault_holds", "fault_healed"):
        assert [line["number"] for line in host.audit(event)] == list(range(1, 21)), event


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        ('command = ["true"]', "no absolute path"),
        ('command = ["/nonexistent/program"]', "No such file"),
        ('command = ["/tmp"]', "no program that can be run"),
        ('command = ["/bin/true\\u0000"]', "none of them is NUL"),
        ("command = []", "at least 1 item"),
        ('command = "/bin/true"', "valid list"),
        ('webhook = "ftp://example.org"', "is no URL"),
        ('webhook = "file:///etc/passwd"', "is no URL"),
        ('on = ["sometimes"]', "'begins' or 'ends'"),
        ("on = []", "at least 1 item"),
        ('only = ["EVERYTHING"]', "is no name of a problem"),
        ('level = "ok"', "'notice', 'warning' or 'critical'"),
        ('problems = "mine"', "'node', 'user' or 'all'"),
        ("timeout_seconds = 0.0", "greater than or equal to 1"),
        ("retries = -1", "greater than or equal to 0"),
        ("most_per_hour = 0", "greater than or equal to 1"),
        ("shell = true", "there is no such key"),
    ],
)
def test_what_can_not_be_meant_is_a_line(tmp_path: Path, actions: str, says: str) -> None:
    configuration = tmp_path / "neurond.toml"
    configuration.write_text(f"[actions]\n{actions}\n")
    flags = {"daemon": {"socket": str(tmp_path / "n.sock")}, "simulate": {"instance_type": "trn1.2xlarge"}}
    with pytest.raises(UserError) as error:
        resolve(flags, str(configuration), {})
    assert error.value.exit_code == 2
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_program_that_others_may_change_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o777)
    configuration = tmp_path / "neurond.toml"
    configuration.write_text(f'[actions]\ncommand = ["{program}"]\n')
    flags = {"daemon": {"socket": str(tmp_path / "n.sock")}, "simulate": {"instance_type": "trn1.2xlarge"}}
    with pytest.raises(UserError, match="others may change"):
        resolve(flags, str(configuration), {})


def test_a_program_that_can_not_be_started_is_an_outcome() -> None:
    assert BoundedRun().run(["/nonexistent/program"], b"{}", 5.0, {}).outcome == "not_started"
    assert BoundedRun().run(["/bin/true"], b"x" * 10**6, HANG_SECONDS, {}).outcome == "done", "it need not read"
    ended = BoundedRun().run(["/bin/sh", "-c", "kill -9 $$"], b"{}", HANG_SECONDS, {})
    assert (ended.outcome, ended.detail) == ("failed", "ended by SIGKILL")


def test_no_program_is_started_after_the_end(tmp_path: Path) -> None:
    runner = BoundedRun()
    runner.close()
    assert runner.run(["/bin/touch", str(tmp_path / "begun")], b"{}", HANG_SECONDS, {}).outcome == "not_started"
    assert not (tmp_path / "begun").exists()


@given(st.integers(1, 100), st.lists(st.floats(0, 10_000), max_size=300))
def test_never_more_than_two_hours_worth_in_one(most: int, pauses: list[float]) -> None:
    limit, now, admitted = RateLimit(most, 0.0), 0.0, []
    for pause in pauses:
        now += pause
        if limit.admits(now):
            admitted.append(now)
    for end in admitted:
        assert sum(end - 3600 < at <= end for at in admitted) <= 2 * most + 1


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")
