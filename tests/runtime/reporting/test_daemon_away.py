"""Reporters whose daemon is absent, dies, comes later, or refuses."""

from __future__ import annotations

import resource
import signal
import socket as sockets
import threading

import pytest

from neurontools.driver.environment import InvalidCoreRequest
from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.rpc.socket_path import attach_socket
from neurontools.runtime import Core, CoresUnavailable, Reporter
from neurontools.util.errors import EXIT_NO_DAEMON, UserError
from tests.harness.reporting_process import HBM_BYTES, PID, attach, end, holder
from tests.harness.restarted_daemon import RestartedDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until


@pytest.fixture
def no_timed_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reporter sends its first report, and then those that `flush` asks for."""
    for bound in ("SHORTEST", "LONGEST"):
        monkeypatch.setattr(f"neurontools.runtime.reporting.reporter.{bound}_INTERVAL_SECONDS", 600.0)


def test_cores_held_by_another_are_refused_in_the_words_of_the_original(
    daemon: RestartedDaemon, reporters: list[Reporter]
) -> None:
    other = holder(daemon.socket, NEURON_RT_VISIBLE_CORES="0-1")
    threads = set(threading.enumerate())
    with pytest.raises(CoresUnavailable, match=r"NeuronCore\(s\) not available - Requested:nc1-nc2 Avail") as caught:
        attach(reporters, daemon.socket, NEURON_RT_VISIBLE_CORES="1-2")
    assert caught.value.status is NrtStatus.RESOURCE
    assert str(other.pid) in str(caught.value)
    assert isinstance(caught.value, RuntimeError)
    assert set(threading.enumerate()) <= threads
    wait_until(lambda: set(daemon.owners()) == {other.pid})
    assert daemon.find(PID) is None
    end(other)
    for name, value in (("NEURON_RT_NUM_CORES", "33"), ("NEURON_RT_VISIBLE_CORES", "30-32")):
        with pytest.raises(CoresUnavailable, match=f"{name}.*this host has") as caught:
            attach(reporters, daemon.socket, **{name: value})
        assert caught.value.status is NrtStatus.INVALID


def test_without_daemon_training_goes_on(
    reporters: list[Reporter], socket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = attach(reporters, socket, NEURON_RT_VISIBLE_CORES="3-4")
    assert reporter.cores == (Core(0, 3), Core(1, 4))
    assert not reporter.is_monitored
    with reporter.load_model("m").execution(core=1, flop=1):
        reporter.set_memory(1, "tensors_bytes", 5)
    assert not reporter.flush(10)
    assert reporter.dropped_reports >= 1
    assert "No such file" in str(reporter.last_error)
    assert capsys.readouterr().err == (
        f"neurontools: no monitor daemon at unix:{socket} (No such file or directory): "
        "nothing is monitored; start neurond to see this process\n"
    )


def test_impossible_cores_and_a_required_daemon_that_is_missing_are_errors(
    reporters: list[Reporter], socket: str
) -> None:
    threads = set(threading.enumerate())
    with pytest.raises(InvalidCoreRequest, match="Neuron cores are not contiguous"):
        attach(reporters, socket, NEURON_RT_VISIBLE_CORES="1,3")
    with pytest.raises(UserError, match="NEURONTOOLS_REQUIRE_DAEMON is set") as caught:
        attach(reporters, socket, NEURONTOOLS_REQUIRE_DAEMON="1")
    assert caught.value.exit_code == EXIT_NO_DAEMON
    assert set(threading.enumerate()) <= threads


def test_daemon_is_looked_for_where_it_would_listen(
    daemon: RestartedDaemon, reporters: list[Reporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "neurontools.runtime.reporting.reporter.candidate_sockets",
        lambda environment: ("/nowhere/n.sock", daemon.socket),
    )
    reporter = Reporter.attach({})
    reporters.append(reporter)
    assert reporter.is_monitored


def test_daemon_that_comes_later_sees_everything(stopped_daemon: RestartedDaemon, reporters: list[Reporter]) -> None:
    reporter = attach(reporters, stopped_daemon.socket, NEURON_RT_NUM_CORES="2")
    model = reporter.load_model("early")
    with model.execution(core=1, flop=9):
        pass
    stopped_daemon.start()
    wait_until(reporter.flush)
    assert reporter.cores == (Core(0, 0, 0, HBM_BYTES, 0), Core(1, 1, 0, HBM_BYTES, 1))
    told = stopped_daemon.reported(PID)
    assert [(model.name, model.executions_total) for model in told.models] == [("early", 1)]
    assert stopped_daemon.snapshot().cores[1].flop_total == 0, "a core counts since the daemon began"


def test_killed_and_restarted_daemon_has_the_same_cores_and_counts(
    daemon: RestartedDaemon, reporters: list[Reporter]
) -> None:
    first = holder(daemon.socket, NEURON_RT_NUM_CORES="3")
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="2")
    end(first)  # a new request for two cores would be given others
    model = reporter.load_model("m")
    with model.execution(flop=10):
        pass
    wait_until(reporter.flush)
    for executions in (2, 3):
        daemon.kill()
        with model.execution(flop=10):
            pass
        assert not reporter.flush(10)
        daemon.start()
        wait_until(reporter.flush)
        assert daemon.reported(PID).neuroncore_indices == (3, 4)
        assert daemon.reported(PID).models[0].executions_total == executions
    assert reporter.last_error is None
    assert reporter.dropped_reports >= 2


@pytest.mark.usefixtures("no_timed_reports")  # the other process must ask first
def test_cores_taken_by_another_after_a_restart_are_asked_for_until_they_are_free(
    daemon: RestartedDaemon, reporters: list[Reporter], capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_VISIBLE_CORES="0-1")
    wait_until(reporter.flush)
    daemon.kill()
    daemon.start()
    other = holder(daemon.socket, NEURON_RT_VISIBLE_CORES="1")
    for _ in range(3):
        assert not reporter.flush(10)
    assert "not available - Requested:nc0-nc1" in str(reporter.last_error)
    assert capsys.readouterr().err.count("\n") == 1
    end(other)
    wait_until(reporter.flush)
    assert daemon.reported(PID).neuroncore_indices == (0, 1)


def test_stopped_daemon_stops_nothing(daemon: RestartedDaemon, reporters: list[Reporter]) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="1")
    model = reporter.load_model("m")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("neurontools.runtime.reporting.reporter.CALL_TIMEOUT_SECONDS", 0.2)
        wait_until(reporter.flush)  # what was sent before waits for longer
        daemon.signal(signal.SIGSTOP)
        for _ in range(5000):
            with model.execution(flop=1):
                pass
        assert not reporter.flush(30)
        assert str(reporter.last_error).startswith("DEADLINE_EXCEEDED")
    daemon.signal(signal.SIGCONT)
    wait_until(reporter.flush)
    wait_until(lambda: daemon.snapshot().cores[0].flop_total == 5000)
    assert daemon.owners() == (PID,)


def test_the_end_of_a_process_does_not_wait_for_a_daemon_that_never_answered(
    daemon: RestartedDaemon, socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = "neurontools.runtime.reporting.reporter."
    monkeypatch.setattr(f"{constants}FIRST_ATTACH_TIMEOUT_SECONDS", 0.1)
    for name in ("CALL_TIMEOUT_SECONDS", "EXIT_FLUSH_SECONDS"):
        monkeypatch.setattr(constants + name, 2 * HANG_SECONDS)
    daemon.signal(signal.SIGSTOP)
    reporter = Reporter.attach({}, socket=socket)
    end = threading.Thread(target=reporter.close, daemon=True)
    end.start()
    wait_until(lambda: not end.is_alive())
    daemon.signal(signal.SIGCONT)
    wait_until(lambda: daemon.owners() == ())


@pytest.mark.usefixtures("no_timed_reports")
def test_a_reporter_that_gets_no_descriptors_resumes_when_it_does(
    daemon: RestartedDaemon, reporters: list[Reporter]
) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="1")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wait_until(reporter.flush)
    daemon.kill()
    daemon.start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert not reporter.flush(10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "Too many open files" in str(reporter.last_error)
    wait_until(reporter.flush)
    assert daemon.reported(PID).neuroncore_indices == (0,)


def test_too_much_memory_is_told_once_and_training_goes_on(
    daemon: RestartedDaemon, reporters: list[Reporter], capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="1")
    reporter.set_memory(0, "tensors_bytes", HBM_BYTES + 1)
    assert not reporter.flush(10)
    assert not reporter.flush(10)
    assert reporter.dropped_reports >= 2
    assert str(reporter.last_error).startswith("RESOURCE_EXHAUSTED")
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("neurontools: the monitor daemon refuses what this process reports: ")
    reporter.set_memory(0, "tensors_bytes", HBM_BYTES)
    wait_until(reporter.flush)
    assert reporter.last_error is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"error: your PID is unknown\n", "your PID is unknown"),
        (b"", "it ended the connection"),
        (b"x" * 5000, "it ended the connection"),
        (b"token\n", "Connection refused"),
    ],
)
def test_attach_socket_that_says_something_else(
    socket: str, reporters: list[Reporter], line: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with sockets.socket(sockets.AF_UNIX) as listener, sockets.socket(sockets.AF_UNIX) as unattended:
        listener.settimeout(HANG_SECONDS)
        listener.bind(attach_socket(socket))
        listener.listen()
        unattended.bind(socket)

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(line)

        thread = threading.Thread(target=answer)
        thread.start()
        attach(reporters, socket)
        thread.join()
    assert f"({reason})" in capsys.readouterr().err
