from __future__ import annotations

import os
import signal
import socket as sockets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from neurontools.errors import EXIT_NO_DAEMON, UserError
from neurontools.model import DeviceMemory, HostMemory, TrainingCounters
from neurontools.nrt.environment import InvalidCoreRequest
from neurontools.nrt.status import NrtStatus
from neurontools.rpc.socket_path import attach_socket
from neurontools.runtime import Core, CoresUnavailable, ErrorKind, Outcome, Reporter
from tests.harness import python_process
from tests.harness.restarted_daemon import RestartedDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

HBM_BYTES = 16 * 2**30
PID = os.getpid()


@pytest.fixture
def reporters() -> Iterator[list[Reporter]]:
    """Reporters to close at the end."""
    opened: list[Reporter] = []
    yield opened
    for reporter in opened:
        reporter.close()


def attach(reporters: list[Reporter], socket: str, **environment: str) -> Reporter:
    reporter = Reporter.attach({"NEURONTOOLS_SOCKET": socket, **environment})
    reporters.append(reporter)
    return reporter


def holder(socket: str, **environment: str) -> subprocess.Popen[bytes]:
    """Another process that holds cores, until it is killed or its standard input ends."""
    code = "import sys; from neurontools.runtime import Reporter; r = Reporter.attach(); print(flush=True); "
    process = python_process.popen(
        [sys.executable, "-c", code + "sys.stdin.read()"],
        loaded=python_process.MONITORS,
        env={**os.environ, "NEURONTOOLS_SOCKET": socket, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_cores_asked_for_are_held_until_close(daemon: RestartedDaemon, reporters: list[Reporter]) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_VISIBLE_CORES="4-6", NEURON_PROCESS_TAG="x" * 300)
    assert reporter.cores == (Core(0, 4, 2, HBM_BYTES, 0), Core(1, 5, 2, HBM_BYTES, 1), Core(2, 6, 3, HBM_BYTES, 0))
    assert reporter.is_monitored
    assert reporter.instance_type == "trn1.32xlarge"
    assert reporter.logical_neuroncore_config == 1
    process = daemon.reported(PID)
    assert process.neuroncore_indices == (4, 5, 6)
    assert process.tag == "x" * 255
    reporter.close()
    wait_until(lambda: daemon.owners() == ())
    assert not reporter.is_monitored


@pytest.mark.parametrize(
    ("environment", "cores"),
    [
        ({"NEURON_RT_NUM_CORES": "2"}, (0, 1)),
        ({}, tuple(range(32))),
        ({"NEURON_RT_NUM_CORES": "0"}, tuple(range(32))),
        ({"NEURON_RT_NUM_CORES": "2", "NEURON_RT_VISIBLE_CORES": "31"}, (31,)),
    ],
)
def test_environment_chooses_cores(
    daemon: RestartedDaemon, reporters: list[Reporter], environment: dict[str, str], cores: tuple[int, ...]
) -> None:
    reporter = attach(reporters, daemon.socket, **environment)
    assert tuple(core.neuroncore_index for core in reporter.cores) == cores
    assert daemon.reported(PID).neuroncore_indices == cores


def test_report_says_what_was_done(daemon: RestartedDaemon, reporters: list[Reporter]) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="2")
    model = reporter.load_model("mlp", memory={1: DeviceMemory(constants_bytes=1000)})
    reporter.add_memory(0, "tensors_bytes", 500)
    reporter.add_memory(0, "tensors_bytes", -100)
    reporter.set_host_memory("application_memory_bytes", 77)
    reporter.error(ErrorKind.TRANSIENT)
    with model.execution(core=1, flop=123):
        pass
    with pytest.raises(ZeroDivisionError), model.execution(core=1):
        _ = 1 // 0
    with model.execution(core=1) as execution:
        execution.flop, execution.outcome = 77, Outcome.COMPLETED_WITH_NUM_ERR
    model.end(model.begin(core=0), flop=5, outcome=Outcome.TIMED_OUT)
    assert reporter.flush(60)
    snapshot = wait_until(lambda: snapshot if (snapshot := daemon.snapshot()).cores[1].flop_total else None)
    process = snapshot.processes[0]
    assert process.pid == PID
    assert process.executions is not None
    assert process.errors is not None
    assert process.executions.completed_total == process.executions.completed_with_err_total == 1
    assert process.executions.completed_with_num_err_total == process.executions.timed_out_total == 1
    assert process.errors.transient_total == 1
    assert process.host_memory == HostMemory(application_memory_bytes=77)
    assert snapshot.cores[0].memory == DeviceMemory(tensors_bytes=400)
    assert snapshot.cores[1].memory == DeviceMemory(constants_bytes=1000)
    assert (snapshot.cores[0].flop_total, snapshot.cores[1].flop_total) == (5, 200)
    assert snapshot.cores[1].executions_total == 3
    assert [(loaded.name, loaded.executions_total) for loaded in process.models] == [("mlp", 4)]
    assert sum(process.device_latency_histogram.bucket_counts) == 3
    wait_until(lambda: [loaded.running for loaded in daemon.reported(PID).models] == [False])
    reporter.unload_model(model)
    assert reporter.flush(60)
    wait_until(lambda: daemon.snapshot().cores[1].memory == DeviceMemory())
    assert (reporter.dropped_reports, reporter.ignored_calls, reporter.last_error) == (0, 0, None)


def test_execution_in_flight_is_seen(daemon: RestartedDaemon, reporters: list[Reporter]) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="1")
    model = reporter.load_model("slow")
    before = time.time()
    with model.execution():
        core = wait_until(lambda: core if (core := daemon.snapshot().cores[0]).busy_seconds_total else None)
        assert core.execution_started_at_unix_seconds is not None
        assert before - 1 < core.execution_started_at_unix_seconds < time.time() + 1
        assert core.executions_total == 0
    wait_until(lambda: daemon.snapshot().cores[0].execution_started_at_unix_seconds is None)


def test_reports_come_by_themselves(daemon: RestartedDaemon, reporters: list[Reporter]) -> None:
    attach(reporters, daemon.socket)
    first = daemon.reported(PID).measured_at_seconds
    wait_until(lambda: daemon.reported(PID).measured_at_seconds != first)


def test_counts_of_many_threads_are_exact(daemon: RestartedDaemon, reporters: list[Reporter]) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="2")
    model = reporter.load_model("m")

    def work(thread: int) -> None:
        for _ in range(3000):
            with model.execution(core=thread % 2, flop=3):
                reporter.add_memory(thread % 2, "tensors_bytes", 2)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert reporter.flush(60)
    wait_until(lambda: sum(core.executions_total or 0 for core in daemon.snapshot().cores[:2]) == 18000)
    cores = daemon.snapshot().cores
    assert [core.executions_total for core in cores[:2]] == [9000, 9000]
    assert [core.flop_total for core in cores[:2]] == [27000, 27000]
    assert [core.memory.tensors_bytes for core in cores[:2]] == [18000, 18000]


def test_cores_held_by_another_are_refused_in_the_words_of_the_original(
    daemon: RestartedDaemon, reporters: list[Reporter]
) -> None:
    other = holder(daemon.socket, NEURON_RT_VISIBLE_CORES="0-1")
    threads = threading.active_count()
    with pytest.raises(CoresUnavailable, match=r"NeuronCore\(s\) not available - Requested:nc1-nc2 Avail") as caught:
        attach(reporters, daemon.socket, NEURON_RT_VISIBLE_CORES="1-2")
    assert caught.value.status is NrtStatus.RESOURCE
    assert str(other.pid) in str(caught.value)
    assert isinstance(caught.value, RuntimeError)
    assert threading.active_count() == threads
    wait_until(lambda: set(daemon.owners()) == {other.pid})
    assert daemon.find(PID) is None
    end(other)


def test_cores_that_the_host_lacks_are_refused(daemon: RestartedDaemon, reporters: list[Reporter]) -> None:
    for name, value in (("NEURON_RT_NUM_CORES", "33"), ("NEURON_RT_VISIBLE_CORES", "30-32")):
        with pytest.raises(CoresUnavailable, match=f"{name}.*this host has") as caught:
            attach(reporters, daemon.socket, **{name: value})
        assert caught.value.status is NrtStatus.INVALID


def test_impossible_environment_is_refused_before_anything_else(reporters: list[Reporter], socket: str) -> None:
    with pytest.raises(InvalidCoreRequest, match="Neuron cores are not contiguous"):
        attach(reporters, socket, NEURON_RT_VISIBLE_CORES="1,3")


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


def test_required_daemon_that_is_missing_is_an_error(reporters: list[Reporter], socket: str) -> None:
    threads = threading.active_count()
    with pytest.raises(UserError, match="NEURONTOOLS_REQUIRE_DAEMON is set") as caught:
        attach(reporters, socket, NEURONTOOLS_REQUIRE_DAEMON="1")
    assert caught.value.exit_code == EXIT_NO_DAEMON
    assert threading.active_count() == threads


def test_daemon_is_looked_for_where_it_would_listen(
    daemon: RestartedDaemon, reporters: list[Reporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "neurontools.runtime.reporting.reporter.candidates", lambda environment: ("/nowhere/n.sock", daemon.socket)
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
    with model.execution(core=1, flop=8):
        pass
    assert reporter.flush(60)
    wait_until(lambda: stopped_daemon.snapshot().cores[1].flop_total == 8)


def test_killed_and_restarted_daemon_has_the_same_cores_and_counts(
    daemon: RestartedDaemon, reporters: list[Reporter]
) -> None:
    first = holder(daemon.socket, NEURON_RT_NUM_CORES="3")
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="2")
    end(first)  # a new request for two cores would be given others
    model = reporter.load_model("m")
    with model.execution(flop=10):
        pass
    assert reporter.flush(60)
    for executions in (3, 5):
        daemon.kill()
        with model.execution(flop=10):
            pass
        assert not reporter.flush(10)
        daemon.start()
        assert reporter.flush(60)
        assert daemon.reported(PID).neuroncore_indices == (3, 4)
        with model.execution(flop=7):
            pass
        assert reporter.flush(60)
        wait_until(lambda: daemon.snapshot().cores[3].flop_total == 7)  # a core counts since the daemon began
        assert daemon.reported(PID).models[0].executions_total == executions
    assert reporter.last_error is None
    assert reporter.dropped_reports >= 2


def test_cores_taken_by_another_after_a_restart_are_asked_for_until_they_are_free(
    daemon: RestartedDaemon, reporters: list[Reporter], capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_VISIBLE_CORES="0-1")
    assert reporter.flush(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporter, "_interval_seconds", 600.0)  # only as flush asks: the other one must come first
        assert reporter.flush(60)
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
    assert reporter.flush(60)
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
    assert reporter.flush(60)
    assert reporter.last_error is None


def test_wrong_calls_are_counted_and_never_raise(daemon: RestartedDaemon, reporters: list[Reporter]) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="1")
    model = reporter.load_model("m")
    with model.execution(core=1):
        pass
    model.end(None)  # type: ignore[arg-type]
    reporter.add_memory(0, "tensors", 1)  # type: ignore[arg-type]
    reporter.set_memory(0, "tensors_bytes", "many")  # type: ignore[arg-type]
    reporter.error("odd")  # type: ignore[arg-type]
    reporter.unload_model(model)
    reporter.unload_model(model)
    reporter.load_model(None)  # type: ignore[arg-type]
    assert reporter.flush(60)
    assert reporter.ignored_calls == 8
    assert reporter.last_error is not None


def test_closed_reporter_does_nothing(daemon: RestartedDaemon, reporters: list[Reporter]) -> None:
    before = set(threading.enumerate())  # other tests of this process may have left the device's reporter
    with attach(reporters, daemon.socket) as reporter:
        model = reporter.load_model("m")
    for _ in range(1000):
        with model.execution():
            reporter.add_memory(0, "tensors_bytes", 1)
    assert not reporter.flush(10)
    reporter.close()
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_killed_process_frees_its_cores(daemon: RestartedDaemon) -> None:
    process = holder(daemon.socket, NEURON_RT_NUM_CORES="4")
    wait_until(lambda: daemon.owners() == (process.pid,) * 4)
    end(process)
    wait_until(lambda: daemon.owners() == ())


def test_process_that_ends_frees_its_cores_and_waits_for_nothing(daemon: RestartedDaemon) -> None:
    process = holder(daemon.socket, NEURON_RT_NUM_CORES="4")
    wait_until(lambda: daemon.owners() == (process.pid,) * 4)
    daemon.signal(signal.SIGSTOP)
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0
    daemon.signal(signal.SIGCONT)
    wait_until(lambda: daemon.owners() == ())


def test_started_programs_inherit_no_descriptor(daemon: RestartedDaemon, reporters: list[Reporter]) -> None:
    before = open_descriptors()
    reporter = attach(reporters, daemon.socket)
    assert reporter.flush(60)
    opened = open_descriptors() - before
    assert len(opened) == 2
    assert not any(map(os.get_inheritable, opened))


def open_descriptors() -> set[int]:
    """Those of this process that stay open: the one that lists them is gone when asked again."""
    descriptors = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    return {descriptor for descriptor in descriptors if Path(f"/proc/self/fd/{descriptor}").exists()}


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


def test_no_grpcio_comes_into_the_process(daemon: RestartedDaemon) -> None:
    code = """
import sys
from neurontools.runtime import Reporter
with Reporter.attach() as reporter:
    assert reporter.flush(60)
assert "grpc" not in sys.modules and "pydantic" not in sys.modules
"""
    environment = {**os.environ, "NEURONTOOLS_SOCKET": daemon.socket}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=HANG_SECONDS)


def test_a_look_before_each_report(reporters: list[Reporter], daemon: RestartedDaemon) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="1")
    steps = iter(range(1, 1000))

    def look(told: Reporter) -> None:
        step = next(steps)
        told.set_memory(0, "tensors_bytes", step * 10)
        told.set_training(TrainingCounters(steps_total=step))

    reporter.before_reports(look)

    def told() -> tuple[int, int | None] | None:
        snapshot = daemon.snapshot()
        training = snapshot.processes[0].training
        return None if training is None else (training.steps_total, snapshot.cores[0].memory.tensors_bytes)

    first, first_bytes = wait_until(told)
    assert first_bytes == first * 10
    assert reporter.flush()
    second, second_bytes = wait_until(lambda: now if (now := told()) is not None and now[0] > first else None)
    assert second_bytes == second * 10


def test_a_look_that_fails_costs_nothing_else(reporters: list[Reporter], daemon: RestartedDaemon) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="1")
    reporter.before_reports(lambda _: 1 // 0)  # type: ignore[arg-type]
    reporter.set_memory(0, "tensors_bytes", 7)
    assert reporter.flush()
    wait_until(lambda: daemon.snapshot().cores[0].memory.tensors_bytes == 7)
    assert reporter.ignored_calls > 0
    assert reporter.last_error == "integer division or modulo by zero"
