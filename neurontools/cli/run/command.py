"""`neuron-run`: runs a training script on simulated NeuronCores and says how it went."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, time_ns
from types import FrameType
from typing import Any

from neurontools.cli.line import frame
from neurontools.cli.line.choice import named_or_simulated
from neurontools.cli.line.frame import write_text
from neurontools.cli.line.options import exclude_each_other, is_about_itself
from neurontools.cli.line.telling import tell, tell_lines
from neurontools.cli.run import options, profile, summary, summary_file, warden
from neurontools.cli.run.terminal import Terminal, can_show, columns, pseudo_terminal, relay
from neurontools.driver.environment import NUM_CORES, VISIBLE_CORES
from neurontools.driver.neuron_runtime import parse_visible_cores
from neurontools.estimate.advice import EVERY_RULE, IGNORED_RULES
from neurontools.rpc import socket_path
from neurontools.util import signals
from neurontools.util.errors import EXIT_USAGE, UserError

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from neurontools.cli.run.estimates import Estimates

_COMMAND = "neuron-run"
_MOST_WORKERS = 1024
_PROGRESS_SECONDS = 0.5
_MOST_ADVICE = 3
_END_SECONDS = 30.0
_STDOUT, _STDERR = 1, 2
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Runs the command; the exit code is the script's."""
    frame.run(_COMMAND, _main)


def _main(arguments: list[str]) -> int:
    given, script = options.split(arguments)
    if is_about_itself(given):
        from neurontools.cli.line import about

        write_text(about.text(_COMMAND, options, given))
        return 0
    if "module" not in given:
        if not script:
            raise UserError(f"no script given; usage: {options.USAGE}", EXIT_USAGE)
        if not Path(script[0]).is_file():
            raise UserError(f"{script[0]}: no such file; give the path of a Python script", EXIT_USAGE)
    exclude_each_other(given, "advise", "no-advice")
    exclude_each_other(given, "ignore", "no-advice")
    _ignored(given)
    if "summary-json" in given:
        summary_file.check(given["summary-json"])
    estimates = _estimates(given)
    named, instance_type = named_or_simulated(given, os.environ, reads_only=False)
    if "export-sysfs" in given and instance_type is None:
        raise UserError("--export-sysfs is for a simulated host; add --simulate TYPE", EXIT_USAGE)
    workers = options.count(given, "nproc-per-node", _MOST_WORKERS)
    if workers == 0:
        raise UserError("--nproc-per-node 0: no workers; give at least 1", EXIT_USAGE)
    longest_wait_seconds = options.count(given, "wait", 10**8)
    environment = dict(os.environ)
    _choose_cores(given, workers, environment)
    profile.ask_for(given, environment)
    if "no-advice" in given or "ignore" in given:
        environment[IGNORED_RULES] = given.get("ignore", EVERY_RULE)
    if "top" in given:
        from neurontools.cli.run import top

        top.program()
    with contextlib.ExitStack() as stack:
        if instance_type is not None:
            from neurontools.cli.daemon.private import PrivateDaemon

            daemon = PrivateDaemon(instance_type, export_sysfs=given.get("export-sysfs"))
            environment[socket_path.VARIABLE] = stack.enter_context(daemon).socket_path
        elif named is not None:
            environment[socket_path.VARIABLE] = named
        directory = stack.enter_context(_private_directory())
        environment.pop(summary.DIRECTORY, None)
        if directory is not None:
            environment[summary.DIRECTORY] = str(directory)
        look: Callable[[], None] = _nothing
        if longest_wait_seconds is not None:
            from neurontools.cli.run.wait import Turn

            look = stack.enter_context(Turn(longest_wait_seconds, workers or 1, environment)).end_when_taken
        return _run(_command(given, workers, script), given, environment, directory, look, estimates)


def _estimates(given: dict[str, str]) -> Estimates | None:
    """What is to be estimated at the end; its files are read before the script runs. None where nothing is."""
    if "estimate" not in given:
        for name in ("calibrate", "prices", "samples"):
            if name in given:
                raise UserError(f"--{name} is for an estimate; add --estimate TYPE", EXIT_USAGE)
        return None
    from neurontools.cli.run.estimates import Estimates

    samples = options.count(given, "samples", 10**15)
    if samples == 0:
        raise UserError("--samples 0: no samples; give as many as an epoch has", EXIT_USAGE)
    made = Estimates.of(given, samples)
    if named_or_simulated(given, os.environ, reads_only=False) == (None, None):
        given["simulate"] = made.instance_types[0]
    return made


def _advise(given: dict[str, str], document: dict[str, Any]) -> None:
    """Says what could be better, and adds it to the summary; with --quiet only where it was asked for."""
    if "no-advice" in given:
        return
    from neurontools.estimate.advice import format_advice
    from neurontools.estimate.rules import find_advice

    found = find_advice(document, _ignored(given))
    document["advice"] = [each.document() for each in found]
    told = format_advice(found, None if "advise" in given else _MOST_ADVICE)
    if told and ("advise" in given or "quiet" not in given):
        tell_lines("\n" + told.rstrip("\n"))
    elif "advise" in given:
        tell_lines("\nadvice: nothing found, or fewer than ten steps")


def _ignored(given: dict[str, str]) -> frozenset[str]:
    """The rules that are to say nothing."""
    if "ignore" not in given:
        return frozenset()
    from neurontools.estimate.rules import RULES

    named = frozenset(given["ignore"].split(","))
    for name in sorted(named.difference(RULES)):
        raise UserError(f"no rule of advice is called {name!r}; there are {', '.join(RULES)}", EXIT_USAGE)
    return named


def _choose_cores(given: dict[str, str], workers: int | None, environment: dict[str, str]) -> None:
    """Sets the variables that say which cores; one worker without any gets one core, not the whole host."""
    if "cores" in given:
        try:
            _, count = parse_visible_cores(given["cores"])
        except ValueError as error:
            raise UserError(str(error).replace(VISIBLE_CORES, "--cores"), EXIT_USAGE) from None
        if workers is not None and count < workers:
            raise UserError(
                f"--cores {given['cores']}: {count} core(s) for {workers} workers; give one each", EXIT_USAGE
            )
        environment[VISIBLE_CORES] = given["cores"]
        environment.pop(NUM_CORES, None)
    elif VISIBLE_CORES not in environment and NUM_CORES not in environment and workers is None:
        environment[NUM_CORES] = "1"


def _command(given: dict[str, str], workers: int | None, script: list[str]) -> list[str]:
    target = ["-m", given["module"], *script] if "module" in given else script
    if workers is None:
        return [sys.executable, "-m", "neurontools.runtime", *target]
    return [sys.executable, "-m", "neurontools.runtime.launch.torchrun_agent", str(workers), *target]


def _run(
    command: list[str],
    given: dict[str, str],
    environment: dict[str, str],
    directory: Path | None,
    look: Callable[[], None],
    estimates: Estimates | None,
) -> int:
    """Runs the script and tells how it went; `look` is called several times a second meanwhile."""
    began, began_ns = monotonic(), time_ns()
    with _Child() as child:
        if "top" in given:
            from neurontools.cli.run import top

            child.start(command, environment, subprocess.PIPE, subprocess.STDOUT)
            top.show(child.process, environment, look)
        elif "quiet" in given or not can_show(_STDERR):
            child.start(command, environment)
            _wait(child.process, look)
        else:
            _show_progress(child, command, environment, directory, look)
    profile.complete(environment, began_ns)
    exit_code = child.process.returncode
    if exit_code < 0:
        exit_code = 128 - exit_code
    workers = summary.read_workers(directory)
    count = max(options.count(given, "nproc-per-node", _MOST_WORKERS) or 1, len(workers))
    document = summary.combined(workers, exit_code, monotonic() - began, count)
    if workers and "quiet" not in given:
        tell_lines("\n" + summary.text(document).rstrip("\n"))
    _advise(given, document)
    if estimates is not None:
        told = estimates.of_run(document)
        tell_lines("\n" + told.rstrip("\n"))
    if "summary-json" in given:
        summary_file.write(given["summary-json"], document)
    return exit_code


class _Child:
    """The script's process while it runs. Signals are handed on to it, which ends as it likes.

    Leaving the context by an error ends it.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._warden: subprocess.Popen[bytes] | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process; RuntimeError before it was started."""
        if self._process is None:
            raise RuntimeError("the script was not started")
        return self._process

    def start(self, command: list[str], environment: dict[str, str], stdout: Any = None, stderr: Any = None) -> None:
        """Starts it, from the main thread. A process group of its own would take the terminal from it."""
        token = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._warden = _warden(token)
        outer = environment.get(warden.VARIABLE)
        ends_with_us = {
            **environment,
            signals.PARENT_PID_VARIABLE: str(os.getpid()),
            warden.VARIABLE: f"{outer}:{token}" if outer else token,
        }
        self._process = subprocess.Popen(command, env=ends_with_us, stdout=stdout, stderr=stderr)
        for number in self._early:
            self._process.send_signal(number)

    def __enter__(self) -> _Child:
        self._before = {number: signal.signal(number, self._forward) for number in _FORWARDED}
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._process is not None:
                if self._process.poll() is None:
                    self._process.terminate()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(_END_SECONDS)
                    self._process.kill()
                    self._process.wait()
                if self._process.stdout is not None:
                    self._process.stdout.close()
            if self._warden is not None:
                with contextlib.suppress(OSError):  # somebody ended it
                    self._warden.communicate(b".")
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        # Ctrl-C reaches the script through the terminal, if it is the terminal's foreground.
        if number == signal.SIGINT and _is_foreground():
            return
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)


def _warden(token: str) -> subprocess.Popen[bytes] | None:
    """What ends all that comes from here if this process is killed; None where no process can be had for it."""
    command = [sys.executable, "-I", "-S", str(warden.__file__), token]
    try:
        # In a session of its own and in no run: what ends us by group or terminal leaves it, and so does an outer run.
        return subprocess.Popen(
            command,
            env={name: value for name, value in os.environ.items() if name != warden.VARIABLE},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None


def _is_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _wait(child: subprocess.Popen[bytes], look: Callable[[], None]) -> None:
    if look is _nothing:
        child.wait()
        return
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_PROGRESS_SECONDS)
            return
        look()


def _show_progress(
    child: _Child, command: list[str], environment: dict[str, str], directory: Path | None, look: Callable[[], None]
) -> None:
    """The script's output with a line of progress below it, in the terminal of standard error."""
    from neurontools.cli.run.progress import Progress

    terminal, progress = Terminal(_STDERR), Progress()
    began = monotonic()
    next_seconds = 0.0

    def tick() -> None:
        nonlocal next_seconds
        now = monotonic()
        if now < next_seconds:
            return
        next_seconds = now + _PROGRESS_SECONDS
        look()
        shown = ""
        if can_show(_STDERR):
            workers = summary.read_workers(directory)
            shown = progress.line(workers[0] if workers else None, now - began, columns(_STDERR))
        terminal.show(shown)

    with pseudo_terminal(_STDERR) as (outer, inner):
        child.start(command, environment, inner if _is_same_terminal() else None, inner)
        process = child.process
        try:
            relay(outer, lambda: process.poll() is not None, terminal.write, tick)
        finally:
            terminal.show("")


def _is_same_terminal() -> bool:
    try:
        return os.isatty(_STDOUT) and os.fstat(_STDOUT).st_rdev == os.fstat(_STDERR).st_rdev
    except OSError:
        return False


def _nothing() -> None:
    return None


@contextlib.contextmanager
def _private_directory() -> Iterator[Path | None]:
    """Where the workers say how they are; None, and a line that says so, where there is no room for it."""
    try:
        directory = tempfile.TemporaryDirectory(prefix="neuron-run-", ignore_cleanup_errors=True)
    except OSError as error:
        tell(f"{_COMMAND}: no summary: {tempfile.gettempdir()}: {error.strerror}; the script runs all the same")
        yield None
        return
    with directory as name:
        yield Path(name)


if __name__ == "__main__":
    main()
