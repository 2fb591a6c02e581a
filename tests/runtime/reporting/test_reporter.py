"""A reporter and a daemon that is there."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from neurontools.client import Client
from neurontools.model import DeviceMemory, HostMemory, TrainingCounters
from neurontools.runtime import Core, ErrorKind, Outcome, Reporter
from tests.harness.reporting_process import HBM_BYTES, PID, attach, holder
from tests.harness.restarted_daemon import RestartedDaemon
from tests.harness.waiting import HANG_SECONDS, run_to_end, wait_until


def test_cores_asked_for_are_held_until_close_and_reports_come_by_themselves(
    daemon: RestartedDaemon, reporters: list[Reporter]
) -> None:
    before = set(threading.enumerate())  # other tests of this process may have left the device's reporter
    reporter = attach(reporters, daemon.socket, NEURON_RT_VISIBLE_CORES="4-6", NEURON_PROCESS_TAG="x" * 300)
    assert reporter.cores == (Core(0, 4, 2, HBM_BYTES, 0), Core(1, 5, 2, HBM_BYTES, 1), Core(2, 6, 3, HBM_BYTES, 0))
    was_monitored = reporter.is_monitored
    assert was_monitored
    assert reporter.instance_type == "trn1.32xlarge"
    assert reporter.logical_neuroncore_config == 1
    process = daemon.reported(PID)
    assert process.neuroncore_indices == (4, 5, 6)
    assert process.tag == "x" * 255
    wait_until(lambda: daemon.reported(PID).measured_at_seconds != process.measured_at_seconds)
    model = reporter.load_model("m")
    with reporter:
        pass
    wait_until(lambda: daemon.owners() == ())
    assert not reporter.is_monitored
    for _ in range(1000):
        with model.execution():
            reporter.add_memory(0, "tensors_bytes", 1)
    assert not reporter.flush(10)
    reporter.close()
    wait_until(lambda: set(threading.enumerate()) <= before)


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
    wait_until(reporter.flush)
    # What was noted last: a report may have been made in between.
    snapshot = wait_until(lambda: snapshot if (snapshot := daemon.snapshot()).cores[0].flop_total else None)
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
    wait_until(reporter.flush)
    wait_until(lambda: daemon.snapshot().cores[1].memory == DeviceMemory())
    assert (reporter.dropped_reports, reporter.ignored_calls, reporter.last_error) == (0, 0, None)


def test_execution_in_flight_is_seen_and_wrong_calls_are_counted_and_never_raise(
    daemon: RestartedDaemon, reporters: list[Reporter]
) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="1")
    model = reporter.load_model("slow")
    before = time.time()
    with model.execution():
        core = wait_until(lambda: core if (core := daemon.snapshot().cores[0]).busy_seconds_total else None)
        assert core.execution_started_at_unix_seconds is not None
        assert before - 1 < core.execution_started_at_unix_seconds < time.time() + 1
        assert core.executions_total == 0
    wait_until(lambda: daemon.snapshot().cores[0].execution_started_at_unix_seconds is None)
    with model.execution(core=1):
        pass
    model.end(None)  # type: ignore[arg-type]
    reporter.add_memory(0, "tensors", 1)  # type: ignore[arg-type]
    reporter.set_memory(0, "tensors_bytes", "many")  # type: ignore[arg-type]
    reporter.error("odd")  # type: ignore[arg-type]
    reporter.unload_model(model)
    reporter.unload_model(model)
    reporter.load_model(None)  # type: ignore[arg-type]
    wait_until(reporter.flush)
    assert reporter.ignored_calls == 8
    assert reporter.last_error is not None


def test_counts_of_many_threads_are_exact(daemon: RestartedDaemon, reporters: list[Reporter]) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="2")
    model = reporter.load_model("m")

    def work(thread: int) -> None:
        for _ in range(3000):
            with model.execution(core=thread % 2, flop=3):
                reporter.add_memory(thread % 2, "tensors_bytes", 2)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    wait_until(reporter.flush)
    wait_until(lambda: sum(core.executions_total or 0 for core in daemon.snapshot().cores[:2]) == 18000)
    for core in daemon.snapshot().cores[:2]:
        assert (core.executions_total, core.flop_total, core.memory.tensors_bytes) == (9000, 27000, 18000)


def test_process_that_ends_frees_its_cores_and_waits_for_nothing(daemon: RestartedDaemon) -> None:
    process = holder(daemon.socket, NEURON_RT_NUM_CORES="4")
    wait_until(lambda: daemon.owners() == (process.pid,) * 4)
    daemon.signal(signal.SIGSTOP)
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0
    daemon.signal(signal.SIGCONT)
    wait_until(lambda: daemon.owners() == ())


def test_no_report_between_the_final_one_and_the_close_attaches_again(
    daemon: RestartedDaemon, reporters: list[Reporter]
) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="1")
    with reporter.load_model("m").execution(flop=3):
        pass
    arrived = []

    def pause(frame: FrameType, event: str, _argument: object) -> Any:
        """Delays the thread that closes until the daemon has ended the lease and the reporter has tried to report."""
        if frame.f_code.co_name != "send_final_report":
            return None
        if event == "return":
            sys.settrace(None)
            wait_until(lambda: daemon.owners() == ())
            arrived.append(reporter.flush(HANG_SECONDS))
        return pause

    before = sys.gettrace()
    sys.settrace(pause)
    try:
        reporter.close()
    finally:
        sys.settrace(before)
    assert arrived
    wait_until(lambda: daemon.owners() == ())
    with Client(daemon.socket, timeout_seconds=HANG_SECONDS) as client:
        (ended,) = wait_until(lambda: client.ended().processes)
    assert (ended.counts_are_final, daemon.snapshot().cores[0].executions_total) == (True, 1)


ALONE = """
import os, sys
from neurontools.runtime import Reporter
def sockets():
    "Those that stay open: the one that lists them is gone when asked again."
    found = {int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}
    return {number for number in found if os.readlink(f"/proc/self/fd/{number}").startswith("socket:")}
before = sockets()
with Reporter.attach() as reporter:
    assert any(reporter.flush(60) for _ in range(9))
    print([os.get_inheritable(number) for number in sorted(sockets() - before)])
unneeded = ("grpc", "pydantic", "neurontools.catalog.facts", "neurontools.model.snapshot")
print([name for name in unneeded if name in sys.modules])
"""


def test_no_descriptor_is_inherited_and_no_grpcio_imported(daemon: RestartedDaemon) -> None:
    environment = {**os.environ, "NEURONTOOLS_SOCKET": daemon.socket}
    done = run_to_end([sys.executable, "-c", ALONE], env=environment, check=True)
    assert done.stdout == "[False, False]\n[]\n"


def test_a_callback_before_each_report_may_add_to_it_and_costs_nothing_else_when_it_fails(
    reporters: list[Reporter], daemon: RestartedDaemon
) -> None:
    reporter = attach(reporters, daemon.socket, NEURON_RT_NUM_CORES="1")
    reporter.before_reports(lambda _: int("x"))  # type: ignore[arg-type]
    reporter.set_memory(0, "tensors_bytes", 7)
    wait_until(reporter.flush)
    wait_until(lambda: daemon.snapshot().cores[0].memory.tensors_bytes == 7)
    assert reporter.ignored_calls > 0
    assert reporter.last_error == "invalid literal for int() with base 10: 'x'"
    steps = iter(range(1, 1000))

    def add(report: Reporter) -> None:
        step = next(steps)
        report.set_memory(0, "tensors_bytes", step * 10)
        report.set_training(TrainingCounters(steps_total=step))

    reporter.before_reports(add)

    def reported() -> tuple[int, int | None] | None:
        snapshot = daemon.snapshot()
        training = snapshot.processes[0].training
        return None if training is None else (training.steps_total, snapshot.cores[0].memory.tensors_bytes)

    first, first_bytes = wait_until(reported)
    assert first_bytes == first * 10
    wait_until(reporter.flush)
    second, second_bytes = wait_until(lambda: now if (now := reported()) is not None and now[0] > first else None)
    assert second_bytes == second * 10
