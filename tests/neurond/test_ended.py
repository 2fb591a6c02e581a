"""Processes that ended: how, what they used, and the log of them, over restarts, kills and full disks."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from neurond.journal.accounts import CoreUsage, Departure, ProcessAccounts, ProcessOutcome
from neurond.journal.state_files import (
    ENDED_FILE,
    MOST_ENDED,
    MOST_RECENT,
    OLDER_ENDED_FILE,
    RECENT_SECONDS,
    EndedFile,
    EndedLog,
    decode_ended,
    encode_ended,
    open_state_file,
)
from neurond.startup.configuration import resolve_settings

from neurontools.catalog import peak_flops_per_core
from neurontools.client import Client
from neurontools.model import (
    Attribution,
    DeviceMemory,
    EndedProcess,
    ErrorCounters,
    ExecutionCounters,
    Job,
    NeuronCore,
    Process,
    ServedModel,
    Snapshot,
)
from neurontools.rpc import neuron_pb2 as pb
from neurontools.util.directory import NotTrusted
from neurontools.util.errors import UserError
from tests.harness import python_process
from tests.harness.attached_process import AttachedProcess
from tests.harness.model_parts import parts
from tests.harness.reporting_process import holder
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.snapshots import process_of, snapshot_of
from tests.harness.waiting import HANG_SECONDS, wait_until

NOW = 1_767_323_045.0
TOKEN = "token"


def attached(**changes: object) -> Process:
    process = replace(
        process_of(7, "python train.py", (0,)),
        attached_at_unix_seconds=NOW,
        core_indices=(0, 1),
        neuroncore_indices=(0, 1),
        executions=ExecutionCounters(completed_total=5),
    )
    return replace(process, **changes)  # type: ignore[arg-type]


def found(started_at: float = NOW - 100) -> Process:
    return attached(attached_at_unix_seconds=None, started_at_unix_seconds=started_at)


def at(seconds: float, *processes: Process, core: NeuronCore | None = None) -> Snapshot:
    """The snapshot of a moment; `core` is its first."""
    snapshot = snapshot_of("trn1.32xlarge", processes)
    return replace(
        snapshot,
        taken_at_unix_seconds=NOW + seconds,
        taken_at_seconds=1000.0 + seconds,
        cores=(core or snapshot.cores[0], *snapshot.cores[1:]),
    )


def accounts(*, lives: bool = False) -> ProcessAccounts:
    return ProcessAccounts(lambda _process: lives)


def test_a_process_that_left_is_told_of_when_it_is_known_how_it_ended() -> None:
    of = accounts()
    of.observe(at(0, attached(job=Job("Slurm job 3"), attribution=Attribution(slurm_job_id="3"))), ())
    serves = ServedModel(
        "llm", requests_total=9, failed_requests_total=1, has_application_requests=True, tokens_total=70
    )
    called = ServedModel("traced", requests_total=40, calls_total=40)
    last = attached(executions=ExecutionCounters(completed_total=40, timed_out_total=2), served_models=(serves, called))
    peak = peak_flops_per_core("trn1.32xlarge")
    assert peak
    use = CoreUsage(busy_seconds_total=10.0, flop_total=int(peak * 2), peak_device_memory_bytes=99)
    assert of.observe(at(10), [Departure(TOKEN, last, use)]) == []
    of.end(TOKEN, ProcessOutcome(-9))
    (ended,) = of.observe(at(11), ())
    assert (ended.pid, ended.job, ended.exit_status, ended.how) == (7, "Slurm job 3", -9, "signal 9")
    assert ended.held_seconds == 10.0
    assert ended.neuroncore_hours == pytest.approx(20 / 3600)
    assert ended.utilization_ratio == pytest.approx(0.5)
    assert ended.mfu_ratio == pytest.approx(0.1)
    assert (ended.peak_device_memory_bytes, ended.failed_executions_total) == (99, 2)
    assert (ended.requests_total, ended.failed_requests_total, ended.tokens_total) == (9, 1, 70)
    assert of.observe(at(12), ()) == []


def test_how_it_ended_may_be_known_first_and_it_counts_from_when_it_began_and_not_from_when_it_attached_here() -> None:
    of = accounts()
    for since_seconds, use, known in (
        (None, CoreUsage(busy_seconds_total=1.0, flop_total=1), (0.0, None, None)),
        (1000.0 - 3600.0, CoreUsage(busy_seconds_total=720.0), (3600.0, 0.1, None)),
    ):
        of.end(TOKEN, ProcessOutcome(0))
        (ended,) = of.observe(at(0), [Departure(TOKEN, attached(counted_since_seconds=since_seconds), use)])
        assert (ended.exit_status, (ended.held_seconds, ended.utilization_ratio, ended.mfu_ratio)) == (0, known)


def test_a_process_that_tells_nothing_is_accounted_for_by_what_the_driver_counts() -> None:
    of = accounts()
    process = replace(found(), logical_neuroncore_config=2, neuroncore_indices=(0,))
    first = at(0).cores[0]
    # Before the fourth the driver has begun to count anew.
    counted = ((100, 0), (104, 500), (108, 200), (1, 0), (2, 0))
    for seconds, (busy_seconds, used_bytes) in zip(range(0, 25, 5), counted, strict=True):
        memory = DeviceMemory(tensors_bytes=used_bytes)
        core = replace(first, busy_seconds_total=float(busy_seconds), flop_total=10 * busy_seconds, memory=memory)
        of.observe(at(seconds, replace(process, tag=str(seconds)), core=core), ())
    (ended,) = of.observe(at(20), ())
    assert (ended.busy_seconds_total, ended.flop_total, ended.tag) == (4.5, 90, "20"), "of one core of two"
    assert ended.utilization_ratio == pytest.approx(4.5 / 20.0)
    assert ended.peak_device_memory_bytes == 500
    assert (ended.exit_status, ended.lives_on) == (None, False)


def test_who_lets_its_devices_go_who_follows_with_its_pid_and_who_attaches_later() -> None:
    of = accounts(lives=True)
    of.observe(at(0, found()), ())
    (ended,) = of.observe(at(1, found(started_at=NOW)), ())
    assert (ended.how, ended.ended_at_unix_seconds) == ("let go", NOW + 1), "the next with the same PID is another"
    assert of.observe(at(2, found(started_at=NOW)), ()) == [], "it lives on"
    (other,) = of.observe(at(3), ())
    assert other.began_at_unix_seconds == NOW + 1
    of.observe(at(4, found()), ())
    assert of.observe(at(5, attached()), ()) == []


def ended_at(seconds: float) -> EndedProcess:
    return EndedProcess(7, 0, "root", "", "7", None, False, NOW, NOW + seconds, 1, 1)


def test_the_log_keeps_the_latest_and_says_since_when_it_knows() -> None:
    log = EndedLog(NOW)
    log.add(map(ended_at, range(MOST_ENDED + 5)))
    assert log.known_since_unix_seconds == NOW + 4
    assert len(log.since(0)) == MOST_ENDED
    latest = [NOW + MOST_ENDED + 3, NOW + MOST_ENDED + 4]
    assert [process.ended_at_unix_seconds for process in log.since(latest[0])] == latest


def test_a_record_of_a_process_that_lives_on_is_completed_when_it_ends(tmp_path: Path) -> None:
    living = [True]
    of = ProcessAccounts(lambda _process: living[0])
    of.observe(at(0, found()), ())
    (let_go,) = of.observe(at(1), [Departure(TOKEN, replace(attached(), pid=8), CoreUsage(), has_final_report=True)], 5)
    of.end(TOKEN, ProcessOutcome(lives_on=True))
    (other,) = of.observe(at(2), ())
    log = EndedLog(NOW, EndedFile(str(tmp_path)))
    log.add((let_go, other))
    assert [process.how for process in log.since(0)] == ["let go", "let go"]
    of.end(TOKEN, ProcessOutcome(-15))
    living[0] = False
    log.add(of.observe(at(3), (), 9))  # the clock of the host was set meanwhile
    log.close()
    assert [(each.pid, each.how, each.counts_are_final) for each in log.since(0)] == [
        (7, "-", None),
        (8, "signal 15", True),
    ]
    assert EndedLog(NOW, EndedFile(str(tmp_path))).since(0) == log.since(0)


def test_a_snapshot_shows_what_ended_within_a_minute_and_not_all_of_many() -> None:
    log = EndedLog(NOW)
    log.add(replace(ended_at(0), pid=pid) for pid in range(MOST_RECENT + 5))
    assert len(log.recent(NOW + 1)) == MOST_RECENT
    assert log.recent(NOW + RECENT_SECONDS + 1) == ()


PROCESS = EndedProcess(
    *(7, 1000, "ann", "python train.py \x1b[31m é", "tag", "Slurm job 3", False, 1000.0, 1060.5, 4, 2, (0, 1)),
    *(12.5, 10**15, 0.25, 0.1, 2**33, ExecutionCounters(completed_total=5), ErrorCounters(hardware_total=1), 17, -9),
    inferred_fields=("neuroncore_count",),
)


def numbered(number: int) -> EndedProcess:
    return replace(PROCESS, pid=number)


def written(directory: Path, *processes: EndedProcess, most_file_bytes: int = 2**20) -> None:
    file = EndedFile(str(directory), most_file_bytes=most_file_bytes)
    file.add(processes)
    file.close()


def held(directory: Path) -> list[EndedProcess]:
    file = EndedFile(str(directory))
    file.close()
    return file.ended


def test_a_process_comes_back_as_it_was_whatever_a_later_version_adds() -> None:
    assert decode_ended(encode_ended(PROCESS)) == PROCESS
    assert encode_ended(PROCESS).isascii()
    assert decode_ended(json.dumps(asdict(PROCESS) | {"mood": "fine"}).encode()) == PROCESS


@given(parts(EndedProcess))
def test_any_process_comes_back_or_is_refused(process: EndedProcess) -> None:
    try:
        line = encode_ended(process)
        assert decode_ended(line) == process
    except ValueError:
        pass


@given(st.binary(max_size=300))
@example(encode_ended(PROCESS).replace(b'"utilization_ratio":0.25', b'"utilization_ratio":1e999'))
def test_rubbish_is_no_process(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode_ended(line)


@pytest.mark.parametrize(
    "changes",
    [
        *({"pid": pid} for pid in ("7", 2**40, None)),
        *({"ended_at_unix_seconds": seconds} for seconds in (1e300, 1.0)),
        *({"utilization_ratio": ratio} for ratio in ([1], float("nan"), float("inf"))),
        *({"executions": executions} for executions in ({"unheard_of": 1}, 5)),
        *({"device_indices": indices} for indices in ([-1], 5)),
        {"flop_total": -1},
        {"command": "\udcff"},
    ],
)
def test_a_line_that_could_not_be_shown_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        decode_ended(json.dumps(asdict(PROCESS) | changes).encode())


def test_files_are_for_this_user_alone_or_for_a_group_to_read(tmp_path: Path) -> None:
    written(tmp_path / "own", PROCESS)
    assert (tmp_path / "own" / ENDED_FILE).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    EndedFile(str(tmp_path / "shared"), group_id=os.getgid()).close()
    assert (tmp_path / "shared" / ENDED_FILE).stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o750


def test_it_stays_small_and_keeps_the_latest(tmp_path: Path) -> None:
    most = 4096
    written(tmp_path, *map(numbered, range(1, 101)), most_file_bytes=most)
    assert sorted(path.name for path in tmp_path.iterdir()) == [OLDER_ENDED_FILE, ENDED_FILE]
    assert all(path.stat().st_size <= most for path in tmp_path.iterdir())
    pids = [process.pid for process in held(tmp_path)]
    assert pids == list(range(pids[0], 101))
    assert len(pids) > 5


def test_a_line_that_a_kill_cut_off_is_cut_off_and_the_next_is_whole(tmp_path: Path) -> None:
    written(tmp_path, numbered(1), numbered(2))
    file = tmp_path / ENDED_FILE
    file.write_bytes(file.read_bytes()[:-20])
    written(tmp_path, numbered(3))
    assert [process.pid for process in held(tmp_path)] == [1, 3]
    file.write_bytes(file.read_bytes() + b"\0\xff{}\n[]\n" + b"[" * 9000 + b"\n")  # rubbish takes nothing else with it
    written(tmp_path, numbered(4))
    assert [process.pid for process in held(tmp_path)] == [1, 3, 4]


FILLED = """
import resource, sys
from dataclasses import replace
from neurond.journal.state_files import EndedFile
from neurond.journal.state_files import decode_ended
line = sys.stdin.buffer.read()
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (len(line) * 5 // 2, resource.RLIM_INFINITY))
file = EndedFile(sys.argv[1])
file.add(replace(decode_ended(line), pid=pid) for pid in range(1, 6))
file.close()
"""


def test_a_disk_that_is_full_leaves_whole_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILLED, str(tmp_path)]
    done = subprocess.run(
        command, input=encode_ended(PROCESS), check=True, timeout=HANG_SECONDS, stderr=subprocess.PIPE
    )
    assert b"is not kept: no space left on device" in done.stderr
    assert (tmp_path / ENDED_FILE).read_bytes().endswith(b"\n")
    assert [process.pid for process in held(tmp_path)] == [1, 2]
    written(tmp_path, numbered(9))
    assert [process.pid for process in held(tmp_path)] == [1, 2, 9], "and it goes on when there is room"


TELLS = """
import itertools, sys
from dataclasses import replace
from neurond.journal.state_files import EndedFile, EndedLog, decode_ended
process = decode_ended(sys.stdin.buffer.readline())
log = EndedLog(0.0, EndedFile(sys.argv[1]))
for first in itertools.count(1, 14):
    log.add(replace(process, pid=pid) for pid in range(first, first + 14))
    print(first + 13, flush=True)
"""


def test_a_kill_loses_nothing_that_was_told(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TELLS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as log:
        assert log.stdin is not None
        assert log.stdout is not None
        log.stdin.write(encode_ended(PROCESS))
        log.stdin.flush()
        lines = [log.stdout.readline() for _ in range(50)]
        log.kill()
        told = int([*lines, *log.stdout][-1])
    assert {*range(max(1, told - 500), told + 1)} <= {process.pid for process in held(tmp_path)}


def test_no_file_of_another_place_and_no_directory_that_others_may_change_is_used(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("as it was")
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / ENDED_FILE).hardlink_to(target)
    with pytest.raises(NotTrusted):
        EndedFile(str(state))
    assert target.read_text() == "as it was"
    (state / ENDED_FILE).unlink()
    state.chmod(0o777)
    with pytest.raises(NotTrusted, match="may be changed"):
        EndedFile(str(state))


def test_what_cannot_be_kept_is_told_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = open_state_file(str(tmp_path), None, "what ended", EndedFile)
    assert first is not None
    with caplog.at_level(logging.WARNING):
        assert open_state_file(str(tmp_path), None, "what ended", EndedFile) is None
        assert open_state_file(str(tmp_path / ENDED_FILE), None, "what ended", EndedFile) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: another daemon keeps what ended there; this one keeps it in memory",
        f"{tmp_path / ENDED_FILE}: what ended is kept only in memory: Not a directory",
    ]
    first.close()
    EndedFile(str(tmp_path)).close()


def test_systemd_names_the_directory(tmp_path: Path) -> None:
    environment = {"STATE_DIRECTORY": f"{tmp_path}/state:{tmp_path}/other", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert resolve_settings({}, None, environment).state_directory == f"{tmp_path}/state"


def ended(daemon: RunningDaemon, which: int | str) -> EndedProcess:
    """The process with this PID or tag, once it is told of as ended."""
    with Client(daemon.socket, timeout_seconds=HANG_SECONDS) as client:
        return wait_until(
            lambda: next((each for each in client.ended().processes if which in (each.pid, each.tag)), None)
        )


def let_go(daemon: RunningDaemon, tag: str, *reports: pb.Report) -> EndedProcess:
    """What is told of this process after it has held cores under this tag."""
    attachment = Attachment(daemon)
    attachment.attach(core_count=2, tag=tag)
    for report in reports:
        attachment.report(report)
    attachment.close()
    return ended(daemon, tag)


def test_how_processes_ended_is_known(shared_daemon: RunningDaemon) -> None:
    with ExitStack() as children:
        well, badly, killed, zombie = (
            children.enter_context(AttachedProcess(shared_daemon, count)) for count in ("1", "2", "4", "1")
        )
        well.exit(0)
        badly.exit(7)
        killed.end()
        zombie.end(wait=False)
        hows = [ended(shared_daemon, child.pid).how for child in (well, badly, killed, zombie)]
        assert hows == ["ok", "exit 7", "signal 9", "signal 9"]
        assert ended(shared_daemon, killed.pid).neuroncore_count == 4


WORK = """
import hashlib, os, signal, sys, threading, time
from neurontools.model import TrainingCounters
from neurontools.runtime import Reporter
from neurontools.runtime.reporting.process_end import (
    at_process_end,
    hold_at_process_end,
    run_before_immediate_exit,
)
reporter = Reporter.attach()
model = reporter.load_model("m")
for _ in range(500):
    with model.execution(flop=3):
        pass
reporter.set_training(TrainingCounters(steps_total=50))
"""
LOCKED = """
hold_at_process_end(lock := threading.RLock())
at_process_end(lock.acquire)
threading.Timer(0.02, os.kill, (os.getpid(), 15)).start()
with lock:
    while True:
        threading.Event().wait(0.1)
"""
LONG_CALL = """
def count_more_unless_stopped():
    if sys._current_frames()[threading.main_thread().ident].f_code.co_name == "<module>":
        reporter.set_training(TrainingCounters(steps_total=51))
began = time.thread_time()
hashlib.pbkdf2_hmac("md5", b"", b"", 20_000)
rounds = int(20_000 * 0.5 / (time.thread_time() - began))
at_process_end(count_more_unless_stopped)
threading.Timer(0.02, os.kill, (os.getpid(), 15)).start()  # the call has begun, or nearly
hashlib.pbkdf2_hmac("md5", b"", b"", rounds)
"""


@pytest.mark.parametrize(
    ("end", "status", "is_final"),
    [
        ("", 0, True),
        ("raise ValueError", 1, True),
        ("sys.exit(3)", 3, True),
        ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT, True),
        # A second Ctrl-C, while the process ends.
        ("at_process_end(lambda: signal.raise_signal(signal.SIGINT)); raise KeyboardInterrupt", -signal.SIGINT, True),
        ("signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM, True),
        ("signal.raise_signal(signal.SIGHUP)", -signal.SIGHUP, True),
        ("sys.modules['ctypes'] = None; signal.raise_signal(signal.SIGTERM)", 128 + signal.SIGTERM, True),
        # Python runs no handler during a native call.
        (
            "threading.Timer(0, os.kill, (os.getpid(), 15)).start(); hashlib.pbkdf2_hmac('md5', b'', b'', 2**31 - 1)",
            -signal.SIGTERM,
            True,
        ),
        (LONG_CALL, -signal.SIGTERM, True),  # a call of half a CPU second: the process stops before it reports
        (LOCKED, -signal.SIGTERM, True),  # a hanging execution, whose lock the final counts need
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(4)); signal.raise_signal(signal.SIGTERM)", 4, True),
        ("run_before_immediate_exit(); os._exit(5)", 5, True),
        ("if os.fork() == 0: signal.raise_signal(signal.SIGTERM)\nos.wait(); reporter.close(); os._exit(6)", 6, True),
        ("reporter.flush(60); os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, False),
    ],
)
def test_counts_and_exit_status_are_exact_however_a_process_ends(
    shared_daemon: RunningDaemon, end: str, status: int, is_final: bool
) -> None:
    command = [sys.executable, "-c", f"{WORK}{end}"]
    environment = {**os.environ, "NEURONTOOLS_SOCKET": shared_daemon.socket, "NEURON_RT_NUM_CORES": "1"}
    if status == -signal.SIGINT:  # the harness ends its processes by SIGINT before their functions of atexit
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    else:
        process = python_process.popen(
            command, loaded=python_process.MONITORS, env=environment, stderr=subprocess.DEVNULL
        )
    assert process.wait(HANG_SECONDS) == status
    told = ended(shared_daemon, process.pid)
    assert (told.exit_status, told.lives_on, told.counts_are_final) == (status, False, is_final)
    assert told.executions is not None
    assert (told.executions.completed_total, told.flop_total, told.steps_total) == (500, 1500, 50)


def test_a_process_that_ends_long_after_it_let_its_cores_go_gets_its_exit_status(shared_daemon: RunningDaemon) -> None:
    with AttachedProcess(shared_daemon, "1") as child:
        child.detach()
        first = ended(shared_daemon, child.pid)
        assert first.how == "let go"
        child.exit(7)
        with Client(shared_daemon.socket, timeout_seconds=HANG_SECONDS) as client:
            wait_until(lambda: [e.how for e in client.ended().processes if e.identity == first.identity] == ["exit 7"])


@pytest.mark.parametrize(
    "sent", [b"x", b"final_report 9\nshort", b"final_report 3\n\xff\xff\xff", b"final_report 131073\n"]
)
def test_a_final_report_that_is_none_changes_nothing(shared_daemon: RunningDaemon, sent: bytes) -> None:
    attachment = Attachment(shared_daemon)
    attachment.attach(core_count=1, tag=repr(sent))
    attachment.report(pb.Report(measured_at_seconds=1.0, executions=pb.ExecutionCounters(completed_total=5)))
    attachment.connection.sendall(sent)
    attachment.close()
    told = ended(shared_daemon, repr(sent))
    assert told.executions is not None
    assert (told.executions.completed_total, told.counts_are_final) == (5, False)


@pytest.mark.slow
def test_a_process_that_lets_its_cores_go_lives_on_and_snapshots_show_it(shared_daemon: RunningDaemon) -> None:
    told = let_go(shared_daemon, "lives on")
    assert (told.pid, told.how) == (os.getpid(), "let go")
    assert told in shared_daemon.next_snapshot().ended
    with Client(shared_daemon.socket, timeout_seconds=HANG_SECONDS) as client:
        assert told in {each for snapshot in client.history() for each in snapshot.ended}


def test_each_attachment_of_a_process_that_lives_on_is_told_of_however_fast_they_follow(
    shared_daemon: RunningDaemon,
) -> None:
    tags = {f"one of many {number}" for number in range(100)}
    for tag in tags:
        attachment = Attachment(shared_daemon)
        attachment.attach(core_count=1, tag=tag)
        attachment.close()
    with Client(shared_daemon.socket, timeout_seconds=HANG_SECONDS) as client:
        wait_until(lambda: tags <= {each.tag for each in client.ended().processes})


def test_what_a_process_reported_last_is_in_however_short_it_was(shared_daemon: RunningDaemon) -> None:
    def report(seconds: float, used_bytes: int) -> pb.Report:
        memory = pb.DeviceMemory(tensors_bytes=used_bytes)
        return pb.Report(
            measured_at_seconds=seconds,
            cores=[pb.ReportedCore(local_index=0, busy_seconds_total=seconds / 4, flop_total=1000, memory=memory)],
            executions=pb.ExecutionCounters(completed_total=3, timed_out_total=1),
            errors=pb.ErrorCounters(hardware_total=1),
        )

    told = let_go(shared_daemon, "short", report(1.0, 10), report(2.0, 500), report(3.0, 20))
    assert (told.busy_seconds_total, told.flop_total, told.peak_device_memory_bytes) == (0.75, 1000, 500)
    assert told.executions is not None
    assert (told.executions.completed_total, told.failed_executions_total, told.errors_total) == (3, 1, 1)


def test_who_only_watches_is_not_told_of(shared_daemon: RunningDaemon) -> None:
    with AttachedProcess(shared_daemon, "0") as watching:
        pass
    let_go(shared_daemon, "after it")
    with Client(shared_daemon.socket, timeout_seconds=HANG_SECONDS) as client:
        assert watching.pid not in [each.pid for each in client.ended().processes]


def test_a_time_that_none_is_is_refused(shared_daemon: RunningDaemon) -> None:
    with (
        Client(shared_daemon.socket, timeout_seconds=HANG_SECONDS) as client,
        pytest.raises(UserError, match="since_unix_seconds"),
    ):
        client.ended(float("nan"))


def test_a_daemon_that_ends_takes_nobody_for_ended(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    process = holder(first.socket, "import atexit, os; atexit.register(os._exit, 3)", NEURON_RT_NUM_CORES="1")
    first.stop()
    second = start_daemon()
    # Its runtime attaches again, and reports.
    wait_until(lambda: (found := second.find(process.pid)) and found.counted_since_seconds)
    with Client(second.socket, timeout_seconds=HANG_SECONDS) as client:
        assert client.ended().processes == ()
    process.communicate()  # its connection ends as it does
    told = ended(second, process.pid)
    assert told.exit_status == 3
    with Client(second.socket, timeout_seconds=HANG_SECONDS) as client:
        assert told.began_at_unix_seconds < client.ended().known_since_unix_seconds


def test_what_ended_is_known_after_restarts(start_daemon: StartDaemon, tmp_path: Path) -> None:
    state = tmp_path / "state"
    flags = ("--simulate", "trn1.2xlarge", "--interval", "0.05", "--state-directory", str(state))
    tags: list[str] = []
    for end in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        daemon = start_daemon(*flags)
        with Client(daemon.socket, timeout_seconds=HANG_SECONDS) as client:
            assert [process.tag for process in client.ended().processes] == tags
        tags.append(f"before {end.name} {len(tags)}")
        let_go(daemon, tags[-1])
        if end is signal.SIGTERM:  # a daemon that ends leaves nobody out who has left
            tags.append(f"at the end {len(tags)}")
            attachment = Attachment(daemon)
            attachment.attach(core_count=2, tag=tags[-1])
            attachment.close()
            while any(daemon.owners()):
                pass
        daemon.stop(end)
