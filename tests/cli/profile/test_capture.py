"""neuron-profile on trainings that really ran: captured, beside neuron-run's summary, in the viewers of others."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from neurontools.profile import Profile, SpanKind, read_directory
from neurontools.profile.analysis.report import build_report
from tests.harness import python_process
from tests.harness.chromium import PROGRAM, chromium
from tests.harness.command import calls
from tests.harness.neuron_run import TRAINING, Started, neuron_run
from tests.harness.paths import PYTHONPATH
from tests.harness.profiled_scripts import TWELVE_STEPS
from tests.harness.running_daemon import RunningDaemon
from tests.harness.viewers import viewer
from tests.harness.waiting import HANG_SECONDS, wait_until

BACKWARD_LINE, STEP_LINE = 9, 10  # of TRAINING


class Training(Started):
    """A training of so many ranks, each of which has taken some steps."""

    def __init__(self, daemon: RunningDaemon, directory: Path, ranks: int = 1, script: str = TRAINING) -> None:
        (directory / "script.py").write_text(script)
        super().__init__(directory, "-q", "--no-advice", "-n", str(ranks), "script.py", socket=daemon.socket)
        self.pids = [self.pid_of(rank) for rank in range(ranks)]

    @property
    def pid(self) -> int:
        return self.pids[0]

    @property
    def steps(self) -> int:
        return len((self.directory / "alive0").read_text())

    def goes_on(self) -> None:
        steps = self.steps
        wait_until(lambda: self.steps > steps + 2)


@pytest.fixture
def training(daemon: RunningDaemon, tmp_path: Path) -> Iterator[Training]:
    with closing(Training(daemon, tmp_path)) as started:
        yield started


def started(daemon: RunningDaemon, *arguments: object) -> subprocess.Popen[str]:
    return python_process.popen(
        [sys.executable, "-m", "neurontools.cli.profile.command", "capture", *map(str, arguments)],
        loaded=python_process.MONITORS,
        env={**os.environ, "NEURONTOOLS_SOCKET": daemon.socket, "PYTHONPATH": PYTHONPATH},
        **python_process.PIPES,
    )


def ended(capture: subprocess.Popen[str]) -> tuple[int, str, str]:
    with capture:
        told, complained = capture.communicate(timeout=HANG_SECONDS)
    return capture.returncode, told, complained


def captured(daemon: RunningDaemon, *arguments: object) -> tuple[int, str, str]:
    return ended(started(daemon, *arguments))


FIRST_LINE_BYTES = 2_000


def drafts(directory: Path) -> list[int]:
    """The sizes of the profiles that arrive."""
    return [path.stat().st_size for path in directory.glob(".capture-*")]


def is_under_way(directory: Path) -> bool:
    """Whether a profile has begun to arrive: more than its first line is there."""
    return sum(drafts(directory)) > FIRST_LINE_BYTES


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
    shown = calls("neuron-profile", {})("show", str(tmp_path / "made"))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "─ Step time ─" in shown.stdout


def _check_the_steps_are_whole(profile: Profile) -> None:
    """Each has one execution of the same FLOPs, each operator has its line, and nothing was compiled for it."""
    steps = {step.step: step for step in profile.steps}
    assert {step.executions for step in steps.values()} == {1}
    assert len({step.flops for step in steps.values()}) == 1
    assert all(step.compile_ns == 0 for step in steps.values())
    executed = [
        event for event in profile.execution_events() if event.kind is SpanKind.EXECUTION and event.step in steps
    ]
    assert len(executed) == len(steps)
    lines = {use.place.line for use in build_report([profile]).operators if use.place is not None}
    assert {BACKWARD_LINE, STEP_LINE} <= lines
    assert all(each.stack is not None for each in profile.operators)


STEPWISE = (
    TRAINING.replace("import os", "wanted = open('wanted')\nimport os")
    .replace('not os.path.exists("stop")', "wanted.read(1)")
    .replace("    with torch.no_grad(): weight.fill_(1.0)\n", "")
)


@pytest.mark.slow
def test_a_capture_ends_with_the_last_of_its_steps(daemon: RunningDaemon, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "wanted")
    with (tmp_path / "wanted").open("r+b", buffering=0) as wanted:
        wanted.write(b"." * 6)
        with closing(Training(daemon, tmp_path, script=STEPWISE)) as training:
            capture = started(daemon, "--pid", training.pid, "--steps", 2, "--seconds", 600, "-o", tmp_path / "made")
            wait_until(lambda: sum(drafts(tmp_path / "made")))
            wanted.write(b"." * 3)
            assert ended(capture)[0] == 0
    (profile,) = read_directory(tmp_path / "made")
    assert [step.step for step in profile.steps] == [8, 9]


@pytest.mark.slow
def test_two_ranks_are_captured_at_once_and_stand_side_by_side(daemon: RunningDaemon, tmp_path: Path) -> None:
    with closing(Training(daemon, tmp_path, ranks=2)) as training:
        asked = [argument for pid in training.pids for argument in ("--pid", pid)]
        capture = started(daemon, *asked, "--seconds", 600, "-o", tmp_path / "made")
        wait_until(lambda: len([size for size in drafts(tmp_path / "made") if size > FIRST_LINE_BYTES]) == 2)
        training.stop_training()
        code, told, complained = ended(capture)
    assert code == 0, complained
    assert len(told.split()) == 2
    profiles = read_directory(tmp_path / "made")
    assert [profile.metadata.rank for profile in profiles] == [0, 1]
    assert max(each.metadata.began_ns for each in profiles) < min(each.state.ended_ns for each in profiles)
    assert len(list((tmp_path / "made").glob("all_ranks/*.trace.json.gz"))) == 1


@pytest.mark.slow
def test_a_second_capture_is_refused_and_one_whose_asker_dies_ends(
    daemon: RunningDaemon, training: Training, tmp_path: Path
) -> None:
    first = started(daemon, "--pid", training.pid, "--seconds", 600, "-o", tmp_path / "first")
    wait_until(lambda: is_under_way(tmp_path / "first"))
    code, told, complained = captured(daemon, "--pid", training.pid, "-o", tmp_path / "second")
    assert (code, told) == (1, "")
    assert complained == (
        f"neuron-profile: PID {training.pid}: another profile of it is running; try again when that has ended\n"
    )
    assert not (tmp_path / "second").exists()
    first.kill()
    ended(first)

    def is_free() -> bool:
        return captured(daemon, "--pid", training.pid, "--seconds", 0.1, "-o", tmp_path / "third")[0] == 0

    wait_until(is_free)
    training.goes_on()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["dies", "ends", "ends without a daemon"])
def test_the_profile_of_a_training_that_ends(
    daemon: RunningDaemon, training: Training, tmp_path: Path, what: str
) -> None:
    """What was there of one that dies is kept, one that ends by itself gives all there is."""
    capture = started(daemon, "--pid", training.pid, "--seconds", 600, "-o", tmp_path / "made")
    wait_until(lambda: is_under_way(tmp_path / "made"))
    if what == "ends without a daemon":
        daemon.stop(signal.SIGKILL)
        before = sum(drafts(tmp_path / "made"))
        wait_until(lambda: sum(drafts(tmp_path / "made")) > before)
    if what == "dies":
        os.kill(training.pid, signal.SIGKILL)
    else:
        training.stop_training()
    code, told, complained = ended(capture)
    assert len(told.split()) == 1
    (profile,) = read_directory(tmp_path / "made")
    if what == "dies":
        assert code == 1
        assert f"PID {training.pid} ended during the capture; its profile ends up to a second earlier" in complained
        assert not profile.state.has_ended
        assert profile.graphs
    else:
        assert code == 0, complained
        assert training.end()[0] == 0
        assert profile.state.has_ended
        assert profile.steps[-1].step == training.steps


def test_interrupting_it_leaves_nothing(daemon: RunningDaemon, training: Training, tmp_path: Path) -> None:
    capture = started(daemon, "--pid", training.pid, "--seconds", 600, "-o", tmp_path / "made")
    wait_until(lambda: is_under_way(tmp_path / "made"))
    capture.send_signal(signal.SIGINT)
    code, told, _ = ended(capture)
    assert (code, told) == (130, "")
    assert not (tmp_path / "made").exists()
    training.goes_on()


def test_a_directory_that_can_not_be_written_is_told_before_anybody_is_asked(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    made = tmp_path / "file" / "made"
    done = calls("neuron-profile", {"NEURONTOOLS_SOCKET": daemon.socket})(
        "capture", "--pid", str(os.getpid()), "-o", str(made)
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"neuron-profile: {made}: Not a directory; give another directory with -o")


_HAS_TEXT = """(async () => {
  for (;;) {
    const frames = [...document.querySelectorAll('iframe')].map(frame => frame.contentDocument);
    const text = [document, ...frames].map(each => each && each.body ? each.body.innerText : '').join(' ');
    if (text.includes(%s)) return true;
    await new Promise(done => setTimeout(done, 50));
  }
})()"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("served")
    (directory / "script.py").write_text(TWELVE_STEPS)
    done = neuron_run(directory, "-q", "--simulate", "trn1.2xlarge", "--profile", "made", "script.py")
    assert done.returncode == 0, done.stderr
    return directory / "made"


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def served(program: Path, where: Path, port: int, directory: Path) -> Iterator[None]:
    """neuron-profile serve where this is the only viewer."""
    (directory / "bin").mkdir()
    (directory / "bin" / program.name).symlink_to(program)
    server = subprocess.Popen(
        [sys.executable, "-m", "neurontools.cli.profile.command", "serve", where, "--port", str(port)],
        env={**os.environ, "PATH": f"{directory / 'bin'}:/usr/bin:/bin"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: answers(port) or server.poll() is not None)
        assert server.poll() is None
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("name", "page"), [("tensorboard", "/#profile"), ("xprof", "/")])
def test_a_browser_gets_our_run(name: str, page: str, made: Path, tmp_path: Path, port: int) -> None:
    program = viewer(name)
    if program is None:
        pytest.skip("make viewers installs TensorBoard and xprof")
    with served(program, made, port, tmp_path), chromium() as browser:
        browser.load(f"http://127.0.0.1:{port}{page}")
        (run,) = browser.value("fetch('/data/plugin/profile/runs').then(answer => answer.json())")
        assert (made / "plugins" / "profile" / run).is_dir()
        assert browser.value(_HAS_TEXT % json.dumps(run))
