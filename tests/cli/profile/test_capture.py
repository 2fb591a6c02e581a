"""neuron-profile capture: profiles of trainings that run, from another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neurontools.analysis import report
from neurontools.profile import Kind, Profile, read_directory
from tests.harness import python_process
from tests.harness.paths import PYTHONPATH
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

TRAINING = """
import os, pathlib, time, torch, torch_xla.core.xla_model as xm
device = xm.xla_device()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
number = 0
while not pathlib.Path("stop").exists():
    optimizer.zero_grad()
    output = model(torch.randn(8, 16).to(device))
    loss = torch.nn.functional.cross_entropy(output, torch.zeros(8, dtype=torch.long).to(device))
    loss.backward()
    optimizer.step()
    xm.mark_step()
    number += 1
    pathlib.Path(f"{os.environ.get('RANK', '0')}.steps").write_text(str(number))
    time.sleep(0.002)
"""
FORWARD_LINE, LOSS_LINE = 10, 11


class Training:
    """A training in a directory of its own, that stops when it is told to."""

    def __init__(self, daemon: RunningDaemon, directory: Path, rank: int = 0, **environment: str) -> None:
        self.directory = directory
        self.rank = rank
        (directory / "train.py").write_text(TRAINING)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("NEURON", "XLA_"))}
        self.process = python_process.popen(
            [sys.executable, "-m", "neurontools.runtime", "train.py"],
            loaded=python_process.TORCH,
            cwd=directory,
            env={
                **kept,
                "NEURONTOOLS_SOCKET": daemon.socket,
                "NEURON_COMPILE_CACHE_URL": str(directory / "cache"),
                "PYTHONPATH": PYTHONPATH,
                "NEURON_RT_VISIBLE_CORES": str(rank),
                "RANK": str(rank),
                **environment,
            },
        )
        wait_until(lambda: self.steps >= 5)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def steps(self) -> int:
        try:
            return int((self.directory / f"{self.rank}.steps").read_text() or 0)
        except FileNotFoundError:
            return 0

    def goes_on(self) -> None:
        steps = self.steps
        wait_until(lambda: self.steps > steps + 2)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def training(daemon: RunningDaemon, tmp_path: Path) -> Iterator[Training]:
    started = Training(daemon, tmp_path)
    yield started
    started.end()


def started(daemon: RunningDaemon, *arguments: object) -> subprocess.Popen[str]:
    return python_process.popen(
        [sys.executable, "-m", "neurontools.cli.profile.command", "capture", *map(str, arguments)],
        loaded=python_process.MONITORS,
        env={**os.environ, "NEURONTOOLS_SOCKET": daemon.socket, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(capture: subprocess.Popen[str]) -> tuple[int, str, str]:
    with capture:
        told, complained = capture.communicate(timeout=HANG_SECONDS)
    return capture.returncode, told, complained


def captured(daemon: RunningDaemon, *arguments: object) -> tuple[int, str, str]:
    return ended(started(daemon, *arguments))


def draft_size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob(".capture-*"))


def is_under_way(directory: Path) -> bool:
    """Whether a profile has begun to arrive: more than its first line is there."""
    return draft_size(directory) > 2_000


@pytest.mark.long
def test_steps_of_a_running_training_are_whole_and_it_goes_on(
    daemon: RunningDaemon, training: Training, tmp_path: Path
) -> None:
    code, told, complained = captured(daemon, "--pid", training.pid, "--steps", 5, "-o", tmp_path / "made")
    assert code == 0, complained
    (path,) = map(Path, told.split())
    assert path.parent == tmp_path / "made"
    (profile,) = read_directory(tmp_path / "made")
    assert len(profile.steps) >= 5
    assert profile.state.has_ended
    assert not profile.is_damaged
    first = profile.steps[0].step
    assert first > 5
    assert [step.step for step in profile.steps] == list(range(first, first + len(profile.steps)))
    _check_the_steps_are_whole(profile)
    training.goes_on()
    for pattern in ("*.pt.trace.json.gz", "*.memory_snapshot.pickle", "plugins/profile/*/*.xplane.pb"):
        assert len(list((tmp_path / "made").glob(pattern))) == 1
    shown = subprocess.run(
        [sys.executable, "-m", "neurontools.cli.profile.command", "show", tmp_path / "made"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "─ Step time ─" in shown.stdout


def _check_the_steps_are_whole(profile: Profile) -> None:
    """Each has one execution of the same FLOPs, each operator has its line, and nothing was compiled for it."""
    steps = {step.step: step for step in profile.steps}
    assert {step.executions for step in steps.values()} == {1}
    assert len({step.flops for step in steps.values()}) == 1
    assert all(step.compile_ns == 0 for step in steps.values())
    executed = [event for event in profile.execution_events() if event.kind is Kind.EXECUTION and event.step in steps]
    assert len(executed) == len(steps)
    lines = {use.place.line for use in report([profile]).operators if use.place is not None}
    assert {FORWARD_LINE, LOSS_LINE} <= lines
    assert all(each.stack is not None for each in profile.operators)


@pytest.mark.long
def test_two_ranks_are_captured_at_once_and_stand_side_by_side(
    daemon: RunningDaemon, training: Training, tmp_path: Path
) -> None:
    other = Training(daemon, tmp_path, rank=1)
    try:
        code, told, complained = captured(
            daemon, *("--pid", training.pid, "--pid", other.pid, "--seconds", 10, "-o", tmp_path / "made")
        )
    finally:
        other.end()
    assert code == 0, complained
    assert len(told.split()) == 2
    profiles = read_directory(tmp_path / "made")
    assert [profile.metadata.rank for profile in profiles] == [0, 1]
    assert max(each.metadata.began_ns for each in profiles) < min(each.state.ended_ns for each in profiles)
    assert len(list((tmp_path / "made").glob("ranks.*.trace.json.gz"))) == 1


@pytest.mark.long
def test_a_second_capture_is_refused_and_one_whose_asker_dies_ends(
    daemon: RunningDaemon, training: Training, tmp_path: Path
) -> None:
    first = started(daemon, "--pid", training.pid, "--seconds", 600, "-o", tmp_path / "first")
    wait_until(lambda: is_under_way(tmp_path / "first"))
    code, told, complained = captured(daemon, "--pid", training.pid, "-o", tmp_path / "second")
    assert (code, told) == (1, "")
    assert complained == (
        f"neuron-profile: PID {training.pid}: a profile of it is being taken already; try again when that is done\n"
    )
    assert not (tmp_path / "second").exists()
    first.kill()
    ended(first)

    def is_free() -> bool:
        return captured(daemon, "--pid", training.pid, "--seconds", 0.1, "-o", tmp_path / "third")[0] == 0

    wait_until(is_free)
    training.goes_on()


@pytest.mark.long
def test_what_was_there_of_a_process_that_dies_is_kept(
    daemon: RunningDaemon, training: Training, tmp_path: Path
) -> None:
    capture = started(daemon, "--pid", training.pid, "--seconds", 600, "-o", tmp_path / "made")
    wait_until(lambda: is_under_way(tmp_path / "made"))
    training.end()
    code, told, complained = ended(capture)
    assert code == 1
    assert f"PID {training.pid} ended in the middle; its profile goes until a second before" in complained
    (profile,) = read_directory(tmp_path / "made")
    assert not profile.state.has_ended
    assert len(told.split()) == 1
    assert profile.graphs


@pytest.mark.long
def test_a_training_that_ends_by_itself_gives_all_there_is(
    daemon: RunningDaemon, training: Training, tmp_path: Path
) -> None:
    capture = started(daemon, "--pid", training.pid, "--seconds", 600, "-o", tmp_path / "made")
    wait_until(lambda: is_under_way(tmp_path / "made"))
    (tmp_path / "stop").touch()
    code, _, complained = ended(capture)
    assert code == 0, complained
    assert training.process.wait(HANG_SECONDS) == 0
    (profile,) = read_directory(tmp_path / "made")
    assert profile.state.has_ended
    assert profile.steps[-1].step == training.steps


@pytest.mark.long
def test_a_capture_outlives_its_daemon(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon()
    training = Training(daemon, tmp_path)
    try:
        capture = started(daemon, "--pid", training.pid, "--seconds", 600, "-o", tmp_path / "made")
        wait_until(lambda: is_under_way(tmp_path / "made"))
        daemon.stop(signal.SIGKILL)
        before = draft_size(tmp_path / "made")
        wait_until(lambda: draft_size(tmp_path / "made") > before)
        (tmp_path / "stop").touch()
        assert ended(capture)[0] == 0
    finally:
        training.end()
    (profile,) = read_directory(tmp_path / "made")
    assert profile.state.has_ended


def test_interrupting_it_leaves_nothing(daemon: RunningDaemon, training: Training, tmp_path: Path) -> None:
    capture = started(daemon, "--pid", training.pid, "--seconds", 600, "-o", tmp_path / "made")
    wait_until(lambda: is_under_way(tmp_path / "made"))
    capture.send_signal(signal.SIGINT)
    code, told, _ = ended(capture)
    assert (code, told) == (130, "")
    assert not (tmp_path / "made").exists()
    training.goes_on()


def test_what_can_not_be_meant_is_told(tmp_path: Path) -> None:
    for arguments, told in (
        ((), "capture needs --pid or --job"),
        (("--pid", "1", "--job", "x"), "capture needs --pid or --job"),
        (("--pid", "0"), "--pid 0: give a whole number"),
        (("--pid", "1", "--seconds", "nan"), "--seconds nan: give a number from 0.01 to 3600"),
        (("--pid", "1", "--steps", "0"), "--steps 0: give a whole number from 1"),
        (("--pid", "1", "--json"), "--json: not for capture"),
        (("made", "--pid", "1"), "capture takes no directory of profiles"),
    ):
        command = [sys.executable, "-m", "neurontools.cli.profile.command", "capture", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"neuron-profile: {told}")
    assert not list(tmp_path.iterdir())


def test_a_directory_that_can_not_be_written_is_told_before_anybody_is_asked(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    code, told, complained = captured(daemon, "--pid", os.getpid(), "-o", tmp_path / "file" / "made")
    assert (code, told) == (1, "")
    told = f"{tmp_path}/file/made: Not a directory; give another directory with -o"
    assert complained.startswith(f"neuron-profile: {told}")
