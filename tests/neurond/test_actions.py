"""Commands and webhooks of the daemon, and its audit: real programs, a real HTTP server, real findings."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.actions import ActionSettings, BoundedCommand, FindingActions, HourlyTokenBucket
from neurond.journal.state_files import AuditLog, open_audit_file
from neurond.startup.configuration import resolve_settings

from neurontools.driver.kernel_log import HardwareError, KernelRecord
from neurontools.faults.requests import FaultRequest
from neurontools.model import Finding, Severity
from neurontools.model.finding import FindingKind
from neurontools.rpc import fault_calls
from tests.harness.answering_server import Reply, answering
from tests.harness.json_lines import audit_entries, complete_lines
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.secret_file import write_secret
from tests.harness.snapshots import snapshot_of
from tests.harness.waiting import HANG_SECONDS, wait_until

TAKES_NOTE = """#!/bin/sh
# Writes down what it is told and with what it was started.
cat >>"{directory}/told"
env >"{directory}/environment"
echo "$#" "$1" >"{directory}/arguments"
{more}
"""


class Host:
    """What programs and the audit write in a directory, with a daemon whose kernel log the test writes or without."""

    def __init__(self, directory: Path, start: StartDaemon) -> None:
        self.directory = directory
        self.state = directory / "state"
        self._start = start
        self._kernel_log = directory / "kmsg"
        self._kernel_log.touch()

    def program(self, more: str = "") -> Path:
        """A command that writes down what it is told."""
        program = self.directory / "program"
        program.write_text(TAKES_NOTE.format(directory=self.directory, more=more))
        program.chmod(0o755)
        return program

    def _configuration(self, actions: str) -> str:
        configuration = self.directory / "neurond.toml"
        configuration.write_text(f"[actions]\n{actions}\n")
        return str(configuration)

    def start(self, actions: str, name: str = "n.sock") -> RunningDaemon:
        return self._start(
            *("--simulate", "trn1.32xlarge", "--interval", "0.05", "--kmsg", str(self._kernel_log)),
            *("--state-directory", str(self.state), "--config", self._configuration(actions)),
            name=name,
        )

    def logs(self, *texts: str) -> None:
        with self._kernel_log.open("ab") as kernel:
            kernel.write(b"".join(KernelRecord(1, 1, text).line() for text in texts))

    @contextmanager
    def actions(self, table: str) -> Iterator[Callable[..., None]]:
        """The actions alone; gives what tells them of an error that begins, or ends."""
        flags = {"simulate": {"instance_type": "trn1.2xlarge"}, "daemon": {"socket": str(self.directory / "n.sock")}}
        settings = resolve_settings(flags, self._configuration(table), {})
        assert settings.actions is not None
        with closing(AuditLog(open_audit_file(str(self.state), None))) as audit:
            with closing(
                FindingActions(ActionSettings.from_table(settings.actions), audit, first_pause_seconds=0.01)
            ) as actions:

                def tell(event: str = "begins", name: str = "HBM_UNCORRECTABLE_ERROR") -> None:
                    found = [
                        Finding(FindingKind.KERNEL_ERROR, Severity.CRITICAL, "reason", "action", 1.0, (3,), part=name)
                    ]
                    began, ended = (found, []) if event == "begins" else ([], found)
                    actions.submit(began, ended, snapshot_of("trn1.2xlarge"))

                yield tell

    def told(self) -> list[Any]:
        path = self.directory / "told"
        return complete_lines(path) if path.exists() else []

    def audit(self, event: str) -> list[Any]:
        return audit_entries(self.state, event)


@pytest.fixture
def host(tmp_path: Path, start_daemon: StartDaemon) -> Host:
    return Host(tmp_path, start_daemon)


def test_a_command_hears_of_what_begins_and_what_ends(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    proxies = {f"{word}_proxy" for word in ("http", "https", "no")}
    inherited = {"SSL_CERT_FILE", "SSL_CERT_DIR", *proxies, *map(str.upper, proxies)}
    for name in (*inherited, "SECRET"):
        monkeypatch.setenv(name, "x")
    daemon = host.start(f'command = ["{host.program()}", "a b; $(reboot)"]')
    host.logs(HardwareError("HBM_UNCORRECTABLE_ERROR", 3, 0).text())
    wait_until(lambda: len(host.told()) == 1)
    host.logs("Neuron Driver Started with Version:2.30")
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
    assert inherited <= names <= inherited | {"PATH", "LANG", "PWD", "SHLVL", "_", "OLDPWD"}
    daemon.stop()
    reported, _ = host.audit("kernel_record")
    assert (reported["reports"], reported["device_index"], reported["core_index"]) == ("HBM_UNCORRECTABLE_ERROR", 3, 0)
    assert [line["outcome"] for line in host.audit("action")] == ["done", "done"]
    assert [line["name"] for line in host.audit("finding_begins")] == ["HBM_UNCORRECTABLE_ERROR"]
    assert [line["name"] for line in host.audit("finding_ends")] == ["HBM_UNCORRECTABLE_ERROR"]
    assert len(host.audit("daemon_begins")) == len(host.audit("daemon_ends")) == 1


def test_only_what_is_asked_for_is_told(host: Host) -> None:
    with host.actions(f'command = ["{host.program()}"]\nonly = ["DMA_ERROR"]\non = ["ends"]') as tell:
        for event in ("begins", "ends"):
            for name in ("SRAM_UNCORRECTABLE_ERROR", "DMA_ERROR"):
                tell(event, name)
        wait_until(host.told)
    assert [(told["event"], told["finding"]["name"]) for told in host.told()] == [("ends", "DMA_ERROR")]


def test_a_command_that_fails_is_tried_again(host: Host) -> None:
    flag = host.directory / "tried"
    more = f"[ -e {flag} ] || {{ touch {flag}; exit 3; }}"
    with host.actions(f'command = ["{host.program(more)}"]\nretries = 1') as tell:
        tell()
        wait_until(lambda: len(host.audit("action")) == 2)
    first, second = host.audit("action")
    assert (first["attempt"], first["outcome"], first["detail"]) == (1, "failed", "exit code 3")
    assert (second["attempt"], second["outcome"]) == (2, "done")


def test_the_daemon_goes_on_while_a_command_hangs_and_ends_with_all_that_it_has_started(host: Host) -> None:
    child = host.directory / "child"
    program = host.program(f"sleep 600 & echo $! >{child}.new; mv {child}.new {child}; wait")
    daemon = host.start(f'command = ["{program}"]\ntimeout_seconds = 600.0')
    host.logs(HardwareError("HBM_UNCORRECTABLE_ERROR", 3, 0).text())
    wait_until(child.exists)
    daemon.next_snapshot(5)
    assert daemon.stop() == 0
    wait_until(lambda: not _runs(int(child.read_text())))


def test_a_flood_of_findings_is_limited_and_that_is_said(host: Host) -> None:
    daemon = host.start(f'command = ["{host.program()}"]\nmost_per_hour = 2\non = ["begins"]')
    host.logs(*(HardwareError("HBM_UNCORRECTABLE_ERROR", device, 0).text() for device in range(16)))
    wait_until(lambda: len(host.audit("action")) == 16)
    outcomes = [line["outcome"] for line in host.audit("action")]
    assert (outcomes.count("done"), outcomes.count("rate_limited")) == (2, 14)
    assert len(host.told()) == 2
    assert daemon.log.count("more than 2 an hour") == 1


def test_a_webhook_is_posted_to_until_it_takes_it(host: Host, capfd: pytest.CaptureFixture[str]) -> None:
    replies = [Reply(status=500), Reply(status=302, headers={"Location": "/elsewhere"}), Reply()]
    with answering(lambda _: replies.pop(0)) as (url, posts):
        file = write_secret(host.directory / "url", f"{url}/hook?secret=s3cr3t")
        with host.actions(f'webhook_url_file = "{file}"\nretries = 2') as tell:
            tell()
            wait_until(lambda: len(host.audit("action")) == 3)
    assert [post.path for post in posts] == ["/hook?secret=s3cr3t"] * 3, "redirections are not followed"
    assert posts[0].headers["Content-Type"] == "application/json"
    assert json.loads(posts[0].body)["finding"]["name"] == "HBM_UNCORRECTABLE_ERROR"
    assert [line["outcome"] for line in host.audit("action")] == ["failed", "failed", "done"]
    said = capfd.readouterr().err
    assert "status 500" in said
    assert "s3cr3t" not in said + (host.state / "audit.jsonl").read_text()


def test_a_webhook_that_nobody_answers_is_a_line_and_no_more(host: Host, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as silent:  # nobody listens on it, and nobody else gets its port
        silent.bind(("127.0.0.1", 0))
        file = write_secret(host.directory / "url", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        with host.actions(f'webhook_url_file = "{file}"\nretries = 0') as tell:
            tell()
            wait_until(lambda: host.audit("action"))
    assert host.audit("action")[0]["outcome"] == "failed"
    assert "the webhook did not accept a finding: " in capfd.readouterr().err


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
    (fault,) = fault_calls.inject(daemon.socket, [FaultRequest("dma-abort", device_index=3)])
    wait_until(lambda: host.audit("fault_holds"))
    fault_calls.heal(daemon.socket, [fault.number])
    (healed,) = wait_until(lambda: host.audit("fault_healed"))
    (injected,) = host.audit("fault_injected")
    assert (injected["number"], injected["kind"], injected["device_indices"]) == (fault.number, "dma-abort", [3])
    assert healed["number"] == fault.number
    me = os.getuid(), os.getpid()
    assert (injected["injected_by_uid"], injected["injected_by_pid"]) == me
    assert (healed["healed_by_uid"], healed["healed_by_pid"]) == me
    assert (healed["injected_by_uid"], healed["injected_by_pid"]) == me
    assert injected["at_unix_seconds"] <= healed["at_unix_seconds"]
    for _ in range(20):  # most of them begin and end before the next snapshot
        (fault,) = fault_calls.inject(daemon.socket, [FaultRequest("dma-abort", device_index=3)])
        fault_calls.heal(daemon.socket, [fault.number])
    wait_until(lambda: len(host.audit("fault_healed")) == 21)
    for event in ("fault_injected", "fault_holds", "fault_healed"):
        assert [line["number"] for line in host.audit(event)] == list(range(1, 22)), event


@pytest.mark.parametrize(
    ("command", "timeout_seconds", "outcome", "detail"),
    [
        (["/nonexistent/program"], HANG_SECONDS, "not_started", "No such file"),
        (["/bin/true"], HANG_SECONDS, "done", ""),  # it need not read what it is told
        (["/bin/sh", "-c", "kill -9 $$"], HANG_SECONDS, "failed", "ended by SIGKILL"),
        (["/bin/sleep", "600"], 0.01, "timed_out", "no end within 0.01 s"),
    ],
)
def test_how_a_program_ended(command: list[str], timeout_seconds: float, outcome: str, detail: str) -> None:
    ended = BoundedCommand().run(command, b"x" * 10**6, timeout_seconds)
    assert ended.outcome == outcome
    assert detail in ended.detail


def test_no_program_is_started_after_the_end(tmp_path: Path) -> None:
    runner = BoundedCommand()
    runner.close()
    assert runner.run(["/bin/touch", str(tmp_path / "begun")], b"{}", HANG_SECONDS).outcome == "not_started"
    assert not (tmp_path / "begun").exists()


@given(st.integers(1, 100), st.lists(st.floats(0, 10_000), max_size=300))
def test_never_more_than_two_hours_worth_in_one(most: int, pauses: list[float]) -> None:
    limit, now, admitted = HourlyTokenBucket(most, 0.0), 0.0, []
    for pause in pauses:
        now += pause
        if limit.try_take(now):
            admitted.append(now)
    for end in admitted:
        assert sum(end - 3600 < at <= end for at in admitted) <= 2 * most + 1


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")
