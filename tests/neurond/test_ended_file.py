"""The log of what ended in real directories: over restarts, kills and full disks, and with rubbish in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.journal.ended_file import NAME, OLDER_NAME, EndedFile
from neurond.journal.ended_record import from_line, to_line

from neurontools.client import Client
from neurontools.files.directory import NotTrusted
from neurontools.model import EndedProcess, ErrorCounters, ExecutionCounters
from tests.harness.model_parts import parts
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

PROCESS = EndedProcess(
    7,
    1000,
    "ann",
    "python train.py \x1b[31m é",
    "tag",
    "Slurm job 3",
    False,
    1000.0,
    1060.5,
    4,
    2,
    (0, 1),
    12.5,
    10**15,
    0.25,
    0.1,
    2**33,
    ExecutionCounters(completed_total=5),
    ErrorCounters(hardware_total=1),
    17,
    -9,
    inferred_fields=("neuroncore_count",),
)


def numbered(number: int) -> EndedProcess:
    return replace(PROCESS, pid=number)


def written(directory: Path, *processes: EndedProcess, most_file_bytes: int = 2**20) -> None:
    file = EndedFile(str(directory), most_file_bytes=most_file_bytes)
    for process in processes:
        file.add(process)
    file.close()


def held(directory: Path) -> list[EndedProcess]:
    file = EndedFile(str(directory))
    file.close()
    return file.ended


def test_a_process_comes_back_as_it_was() -> None:
    assert from_line(to_line(PROCESS)) == PROCESS
    assert to_line(PROCESS).isascii()


@given(parts(EndedProcess))
def test_any_process_comes_back_or_is_refused(process: EndedProcess) -> None:
    try:
        line = to_line(process)
        assert from_line(line) == process
    except ValueError:
        pass


@given(st.binary(max_size=300))
def test_rubbish_is_no_process(line: bytes) -> None:
    with pytest.raises(ValueError):
        from_line(line)


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": "7"},
        {"pid": 2**40},
        {"pid": None},
        {"ended_at_unix_seconds": 1e300},
        {"ended_at_unix_seconds": 1.0},
        {"utilization_ratio": [1]},
        {"executions": {"unheard_of": 1}},
        {"executions": 5},
        {"device_indices": [-1]},
        {"device_indices": 5},
        {"flop_total": -1},
        {"command": "\udcff"},
    ],
)
def test_a_line_that_could_not_be_shown_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        from_line(json.dumps(asdict(PROCESS) | changes).encode())


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(constant: str) -> None:
    line = to_line(PROCESS).replace(b'"utilization_ratio":0.25', f'"utilization_ratio":{constant}'.encode())
    with pytest.raises(ValueError):
        from_line(line)


def test_what_a_later_version_adds_is_passed_over() -> None:
    assert from_line(json.dumps(asdict(PROCESS) | {"mood": "fine"}).encode()) == PROCESS


def test_files_are_for_this_user_alone_or_for_a_group_to_read(tmp_path: Path) -> None:
    written(tmp_path / "own", PROCESS)
    assert (tmp_path / "own" / NAME).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    EndedFile(str(tmp_path / "shared"), group_id=os.getgid()).close()
    assert (tmp_path / "shared" / NAME).stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o750


def test_it_stays_small_and_keeps_the_latest(tmp_path: Path) -> None:
    most = 4096
    written(tmp_path, *map(numbered, range(1, 101)), most_file_bytes=most)
    assert sorted(path.name for path in tmp_path.iterdir()) == [OLDER_NAME, NAME]
    assert all(path.stat().st_size <= most for path in tmp_path.iterdir())
    pids = [process.pid for process in held(tmp_path)]
    assert pids == list(range(pids[0], 101))
    assert len(pids) > 5


def test_a_line_that_a_kill_cut_off_is_cut_off_and_the_next_is_whole(tmp_path: Path) -> None:
    written(tmp_path, numbered(1), numbered(2))
    file = tmp_path / NAME
    file.write_bytes(file.read_bytes()[:-20])
    written(tmp_path, numbered(3))
    assert [process.pid for process in held(tmp_path)] == [1, 3]


def test_rubbish_between_lines_takes_nothing_else_with_it(tmp_path: Path) -> None:
    written(tmp_path, numbered(1))
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"\0\xff{}\n[]\n" + b"[" * 9000 + b"\n")
    written(tmp_path, numbered(2))
    assert [process.pid for process in held(tmp_path)] == [1, 2]


def test_a_disk_that_is_full_leaves_whole_lines(tmp_path: Path) -> None:
    """The kernel refuses to let the file grow in the middle of a line, as a full disk does."""
    line_bytes = len(to_line(PROCESS))
    code = (
        "import resource, sys\n"
        "from tests.neurond import test_ended_file as own\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({line_bytes * 5 // 2}, resource.RLIM_INFINITY))\n"
        "from pathlib import Path\n"
        "own.written(Path(sys.argv[1]), *map(own.numbered, range(1, 6)))\n"
    )
    code = code.replace("from tests.neurond import test_ended_file as own", _IMPORT)
    subprocess.run([sys.executable, "-c", code, str(tmp_path), __file__], check=True, timeout=60)
    assert (tmp_path / NAME).read_bytes().endswith(b"\n")
    assert [process.pid for process in held(tmp_path)] == [1, 2]
    written(tmp_path, numbered(9))
    assert [process.pid for process in held(tmp_path)] == [1, 2, 9], "and it goes on when there is room"


_IMPORT = (
    "import importlib.util\n"
    "spec = importlib.util.spec_from_file_location('own', sys.argv[2])\n"
    "own = importlib.util.module_from_spec(spec); spec.loader.exec_module(own)"
)


def test_no_link_leads_elsewhere(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("as it was")
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / NAME).symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        EndedFile(str(state))
    (state / NAME).unlink()
    (state / NAME).hardlink_to(target)
    with pytest.raises(NotTrusted):
        EndedFile(str(state))
    assert target.read_text() == "as it was"


def test_a_directory_that_others_may_change_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(NotTrusted, match="may be changed"):
        EndedFile(str(tmp_path / "open"))


def test_one_daemon_at_a_time(tmp_path: Path) -> None:
    first = EndedFile(str(tmp_path))
    with pytest.raises(BlockingIOError):
        EndedFile(str(tmp_path))
    first.close()
    EndedFile(str(tmp_path)).close()


def let_go(daemon: RunningDaemon, tag: str) -> None:
    attachment = Attachment(daemon)
    attachment.attach(core_count=2, tag=tag)
    attachment.close()
    wait_until(lambda: tag in tags(daemon))


def tags(daemon: RunningDaemon) -> list[str]:
    with Client(daemon.socket) as client:
        return [process.tag for process in client.ended().processes]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_ended_is_known_after_a_restart(start_daemon: StartDaemon, tmp_path: Path, end: signal.Signals) -> None:
    state = tmp_path / "state"
    flags = ("--simulate", "trn1.2xlarge", "--interval", "0.05", "--state-directory", str(state))
    first = start_daemon(*flags)
    let_go(first, "before")
    wait_until(lambda: (state / NAME).stat().st_size)
    first.stop(end)
    second = start_daemon(*flags)
    assert tags(second) == ["before"]
    let_go(second, "after")
    assert tags(second) == ["before", "after"]


def test_systemd_names_the_directory(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon(
        "--simulate", "trn1.2xlarge", environment={"STATE_DIRECTORY": f"{tmp_path / 'state'}:{tmp_path / 'other'}"}
    )
    let_go(daemon, "mine")
    wait_until(lambda: (tmp_path / "state" / NAME).stat().st_size)
    assert not (tmp_path / "other").exists()


def test_a_place_that_cannot_be_used_is_told_and_stops_nothing(start_daemon: StartDaemon, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--state-directory", str(tmp_path / "file"))
    let_go(daemon, "mine")
    assert "what ended is kept in memory alone" in daemon.log
