"""`neuron-run`: runs a training script on simulated NeuronCores and prints a summary."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from time import monotonic, time_ns
from types import FrameType
from typing import Any

from neurontools.cli.daemon.connection import choose_daemon
from neurontools.cli.line import (
    END_CODES,
    FILES,
    INFORMATION_OPTIONS,
    INSTANCE_TYPES,
    SIMULATE_OPTION,
    SOCKET_OPTION,
    Option,
    exclude_each_other,
    parse_options,
    print_information,
    whole_option,
)
from neurontools.cli.run import orphan_reaper, summary
from neurontools.cli.run.summary import EstimateRequest
from neurontools.cli.run.terminal import (
    ProgressLine,
    ProgressTerminal,
    find_neuron_top,
    is_foreground_group,
    is_foreground_terminal,
    pseudo_terminal,
    relay_output,
    run_neuron_top,
)
from neurontools.driver.environment import (
    EVERY_RULE,
    IGNORED_RULES,
    INSPECT_ENABLE,
    INSPECT_OUTPUT_DIRECTORY,
    NUM_CORES,
    PROFILE_RUN,
    PROFILE_STEPS,
    SHAPES_ONLY,
    SUMMARY_DIRECTORY,
    VISIBLE_CORES,
    logical_neuroncore_config,
)
from neurontools.driver.neuron_runtime import InvalidProfileSteps, parse_profile_steps, parse_visible_cores
from neurontools.rpc import socket_path
from neurontools.runtime.launch.torch_version import require_torch
from neurontools.util import signals
from neurontools.util.command_lifecycle import run_command, write_stderr, write_stderr_lines
from neurontools.util.errors import EXIT_UNHEALTHY, EXIT_USAGE, UserError
from neurontools.util.terminal import terminal_size

_MAX_RANKS_IN_TRACE = 16  # most workers that trace viewers can show in one trace


def request_profile(given: dict[str, str], environment: dict[str, str]) -> None:
    """Sets the runtime's profiling variables in `environment`. Raises UserError for invalid options."""
    if "profile" not in given:
        if "profile-steps" in given:
            raise UserError("--profile-steps is for a profile; add --profile DIR", EXIT_USAGE)
        return
    environment[INSPECT_ENABLE] = "1"
    environment[PROFILE_RUN] = time.strftime("%Y_%m_%d_%H_%M_%S")  # runs with such names sort by time
    environment[INSPECT_OUTPUT_DIRECTORY] = str(Path(given["profile"]).absolute())
    environment.pop(PROFILE_STEPS, None)
    if "profile-steps" in given:
        try:
            parse_profile_steps(given["profile-steps"])
        except InvalidProfileSteps as error:
            raise UserError(f"--profile-steps {error}", EXIT_USAGE) from None
        environment[PROFILE_STEPS] = given["profile-steps"]


def finish_profiles(environment: dict[str, str], began_ns: int) -> None:
    """Writes the trace viewer files of workers that died, and one trace that combines all workers.

    Reports failures on standard error.
    """
    if PROFILE_RUN not in environment:
        return

    from neurontools.profile.formats.outputs import has_outputs, write_outputs, write_ranks
    from neurontools.profile.reader import profile_paths, read_profile

    directory = Path(environment[INSPECT_OUTPUT_DIRECTORY])
    try:
        paths = [path for path in profile_paths(directory) if path.stat().st_mtime_ns >= began_ns]
    except (OSError, UserError):  # the workers have already reported the cause
        return
    profiles = []
    try:
        for path in paths[:_MAX_RANKS_IN_TRACE]:
            profile = read_profile(path)
            profiles.append(profile)
            if not profile.state.has_ended and not has_outputs(profile.metadata, directory):
                write_outputs(profile, directory, environment[PROFILE_RUN])
                write_stderr(
                    f"neuron-run: profile: {path}: its worker died; it has what was there until a second before"
                )
        if len(profiles) > 1:
            write_ranks(sorted(profiles, key=lambda each: each.metadata.rank), directory)
    except (OSError, UserError) as error:
        cause = f"{directory}: {error.strerror}" if isinstance(error, OSError) else error
        write_stderr(f"neuron-run: profile: {cause}")


_COMMAND = "neuron-run"
_INTERPRETER = re.compile(r"python[\d.]*")  # srun and mpirun, for example, need it before the script
_MOST_WORKERS = 1024
_PROGRESS_SECONDS = 0.5
_MOST_ADVICE = 3
_NOTHING_FOUND = "advice: nothing found, or fewer than ten steps"
_END_SECONDS = 30.0
_ESTIMATE_OPTIONS = (
    *("calibrate", "prices", "samples", "shapes-only", "workers", "batch"),
    *("tensor-parallel", "pipeline-parallel"),
)
_STDOUT, _STDERR = 1, 2
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    run_command(_COMMAND, _run_neuron_run)


def _run_neuron_run(arguments: list[str]) -> int:
    given, script = split_command_line(arguments)
    if print_information(_COMMAND, sys.modules[__name__], given):
        return 0
    if "module" not in given:
        if not script:
            raise UserError(f"no script given; usage: {USAGE}", EXIT_USAGE)
        if script[0] == "-":
            if "nproc-per-node" in given:
                raise UserError("-n needs a file: each worker reads the script; save standard input", EXIT_USAGE)
        elif _INTERPRETER.fullmatch(Path(script[0]).name):
            raise UserError(
                f"{script[0]}: neuron-run starts Python itself; leave it out, and give the script, -m MODULE, or - for "
                "standard input",
                EXIT_USAGE,
            )
        elif not Path(script[0]).is_file():
            raise UserError(f"{script[0]}: no such file; give the path of a Python script", EXIT_USAGE)
    exclude_each_other(given, "advise", "no-advice")
    exclude_each_other(given, "ignore", "no-advice")
    _ignored_rules(given)
    if "summary-json" in given:
        summary.check_summary_path(given["summary-json"])
    estimates = _estimate_request(given)
    require_torch()
    named, instance_type = choose_daemon(given, os.environ, reads_only=False)
    if "export-sysfs" in given and instance_type is None:
        raise UserError("--export-sysfs is for a simulated host; add --simulate TYPE", EXIT_USAGE)
    workers = whole_option(given, "nproc-per-node", None, 1, _MOST_WORKERS)
    longest_wait_seconds = whole_option(given, "wait", None, 0, 10**8)
    environment = dict(os.environ)
    _choose_cores(given, workers, environment)
    request_profile(given, environment)
    if "shapes-only" in given:
        environment[SHAPES_ONLY] = "1"
    if "no-advice" in given or "ignore" in given:
        environment[IGNORED_RULES] = given.get("ignore", EVERY_RULE)
    diag_level = _diag_level(given)
    if "top" in given:
        find_neuron_top()
    with contextlib.ExitStack() as stack:
        if instance_type is not None:
            from neurontools.cli.daemon.private import PrivateDaemon

            daemon = PrivateDaemon(instance_type, export_sysfs=given.get("export-sysfs"))
            environment[socket_path.VARIABLE] = stack.enter_context(daemon).socket_path
        elif named is not None:
            environment[socket_path.VARIABLE] = named
        if diag_level is not None:
            _require_good_devices(diag_level, environment)
        directory = stack.enter_context(_private_directory())
        environment.pop(SUMMARY_DIRECTORY, None)
        if directory is not None:
            environment[SUMMARY_DIRECTORY] = str(directory)
        poll: Callable[[], None] = _no_poll
        if longest_wait_seconds is not None:
            from neurontools.cli.run.wait import CoreQueueTurn

            poll = stack.enter_context(CoreQueueTurn(longest_wait_seconds, workers or 1, environment)).end_when_owned
        if workers is not None and VISIBLE_CORES not in environment:
            _choose_worker_cores(workers, environment)
        return _run_script(_script_command(given, workers, script), given, environment, directory, poll, estimates)


def _diag_level(given: dict[str, str]) -> int | None:
    if "diag" not in given:
        return None
    from neurontools.diagnose.table import LEVELS

    return whole_option(given, "diag", None, LEVELS[0], LEVELS[-1])


def _require_good_devices(level: int, environment: dict[str, str]) -> None:
    """Runs neuron-diag. Raises UserError if a test fails. If the health is unknown, says so and returns."""
    from neurontools.diagnose.results import EXIT_TEST_FAILED

    command = [sys.executable, "-m", "neurontools.cli.diag.command", "--level", str(level)]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        write_stderr_lines(done.stdout.decode("utf-8", "replace").rstrip("\n"))
    if done.returncode == EXIT_TEST_FAILED:
        raise UserError("--diag: a test of the devices failed, so the script did not start", EXIT_UNHEALTHY)
    if done.returncode:
        write_stderr("neuron-run: --diag: the health of the devices is unknown; the script starts anyway")


def _estimate_request(given: dict[str, str]) -> EstimateRequest | None:
    """Returns the estimate request; None without --estimate. Reads the files of the estimate before the script runs."""
    if "estimate" not in given:
        for name in _ESTIMATE_OPTIONS:
            if name in given:
                raise UserError(f"--{name} is for an estimate; add --estimate TYPE", EXIT_USAGE)
        return None
    exclude_each_other(given, "shapes-only", "profile")
    request = EstimateRequest.from_options(given, whole_option(given, "samples", None, 1, 10**15))
    if choose_daemon(given, os.environ, reads_only=False) == (None, None):
        given["simulate"] = request.simulated_type(whole_option(given, "nproc-per-node", 1, 1, _MOST_WORKERS))
    return request


def _print_advice(given: dict[str, str], document: dict[str, Any]) -> None:
    """Prints the advice and adds it to the summary `document`. With --quiet, prints only if --advise is given."""
    if "no-advice" in given:
        return
    if not summary.can_have_advice(document):  # do not import the rules, which takes 0.2 s
        document["verdict"], document["advice"] = None, []
        if "advise" in given:
            write_stderr_lines(f"\n{_NOTHING_FOUND}")
        return
    from neurontools.estimate.advice import format_advice
    from neurontools.estimate.rules import find_advice
    from neurontools.estimate.summary_evidence import summary_verdict
    from neurontools.views.profile_document import verdict_part

    verdict = summary_verdict(document)
    part = verdict_part(verdict)
    document["verdict"] = None if part is None else asdict(part)
    found = find_advice(document, _ignored_rules(given))
    document["advice"] = [each.document() for each in found]
    text = format_advice(found, None if "advise" in given else _MOST_ADVICE, verdict)
    if found and ("advise" in given or "quiet" not in given):
        write_stderr_lines("\n" + text.rstrip("\n"))
    elif "advise" in given:
        write_stderr_lines(f"\n{text}{_NOTHING_FOUND}")


def _ignored_rules(given: dict[str, str]) -> frozenset[str]:
    if "ignore" not in given:
        return frozenset()
    from neurontools.estimate.rules import RULES

    named = frozenset(given["ignore"].split(","))
    for name in sorted(named.difference(RULES)):
        raise UserError(f"no rule of advice is called {name!r}; there are {', '.join(RULES)}", EXIT_USAGE)
    return named


def _choose_cores(given: dict[str, str], workers: int | None, environment: dict[str, str]) -> None:
    """Sets the environment variables that select NeuronCores. By default, a single worker gets one core."""
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


def _choose_worker_cores(workers: int, environment: dict[str, str]) -> None:
    """Sets NEURON_RT_VISIBLE_CORES to consecutive free cores, of which each worker takes one by its local rank.

    Changes nothing if there is no daemon or no such range; the workers then report the cause.
    """
    from neurontools.client.daemon_client import connect
    from neurontools.free_cores import select

    lnc = logical_neuroncore_config(environment)
    with contextlib.suppress(UserError), connect(socket_path.configured_socket(None, environment)) as daemon:
        cores = select(daemon.snapshot(), workers, logical_neuroncore_config=lnc)
        if cores is not None:
            environment[VISIBLE_CORES] = str(cores)


def _script_command(given: dict[str, str], workers: int | None, script: list[str]) -> list[str]:
    target = ["-m", given["module"], *script] if "module" in given else script
    if workers is None:
        return [sys.executable, "-m", "neurontools.runtime", *target]
    return [sys.executable, "-m", "neurontools.runtime.launch.torchrun_agent", str(workers), *target]


def _run_script(
    command: list[str],
    given: dict[str, str],
    environment: dict[str, str],
    directory: Path | None,
    poll: Callable[[], None],
    estimates: EstimateRequest | None,
) -> int:
    """Runs the script, prints the summary and returns the exit code. Calls `poll` repeatedly meanwhile."""
    began, began_ns = monotonic(), time_ns()
    with _ScriptProcess() as child:
        if "top" in given:
            child.start(command, environment, subprocess.PIPE, subprocess.STDOUT)
            run_neuron_top(child.process, environment, poll)
        elif "quiet" in given or not is_foreground_terminal(_STDERR):
            child.start(command, environment)
            _wait_for_script(child.process, poll)
        else:
            _show_progress(child, command, environment, directory, poll)
    finish_profiles(environment, began_ns)
    exit_code = child.process.returncode
    if exit_code < 0:
        exit_code = 128 - exit_code
    workers = summary.read_workers(directory)
    count = max(whole_option(given, "nproc-per-node", 1, 1, _MOST_WORKERS), len(workers))
    document = summary.combine_workers(workers, exit_code, monotonic() - began, count)
    if workers and "quiet" not in given and "shapes-only" not in given:  # the times would be those of nothing
        write_stderr_lines("\n" + summary.summary_text(document).rstrip("\n"))
    if "shapes-only" not in given:
        _print_advice(given, document)
    if estimates is not None:
        write_stderr_lines("\n" + estimates.of_run(document, lists_unpredicted="advise" in given).rstrip("\n"))
    if "summary-json" in given:
        summary.write_summary(given["summary-json"], document)
    return exit_code


class _ScriptProcess:
    """Context manager of the script's process. Forwards signals to it, and terminates it on exit."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._reaper: subprocess.Popen[bytes] | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process of the script. Raises RuntimeError before `start`."""
        if self._process is None:
            raise RuntimeError("the script was not started")
        return self._process

    def start(self, command: list[str], environment: dict[str, str], stdout: Any = None, stderr: Any = None) -> None:
        """Starts the script in our process group, so that it keeps the terminal. Call from the main thread."""
        token = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._reaper = _start_reaper(token)
        outer = environment.get(orphan_reaper.RUN_VARIABLE)
        ends_with_us = {
            **environment,
            signals.PARENT_PID_VARIABLE: str(os.getpid()),
            orphan_reaper.RUN_VARIABLE: f"{outer}:{token}" if outer else token,
        }
        with signals.blocking_interrupts():
            self._process = subprocess.Popen(command, env=ends_with_us, stdout=stdout, stderr=stderr)
        for number in self._early:
            self._process.send_signal(number)

    def __enter__(self) -> _ScriptProcess:
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
            if self._reaper is not None:
                with contextlib.suppress(OSError):  # the reaper is already dead
                    self._reaper.communicate(b".")
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        # For Ctrl-C, the terminal itself sends SIGINT to the script if the script is in the foreground.
        if number == signal.SIGINT and is_foreground_group(0):
            return
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)


def _start_reaper(token: str) -> subprocess.Popen[bytes] | None:
    """Starts the orphan reaper, which kills the script if neuron-run is killed. Returns None if it cannot start."""
    command = [sys.executable, "-I", "-S", str(orphan_reaper.__file__), token]
    try:
        # A new session shields the reaper from signals to our process group or terminal.
        # Without RUN_VARIABLE in its environment, the reaper of an outer neuron-run doesn't kill this reaper.
        return subprocess.Popen(
            command,
            env={name: value for name, value in os.environ.items() if name != orphan_reaper.RUN_VARIABLE},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None


def _wait_for_script(child: subprocess.Popen[bytes], poll: Callable[[], None]) -> None:
    if poll is _no_poll:
        child.wait()
        return
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_PROGRESS_SECONDS)
            return
        poll()


def _show_progress(
    child: _ScriptProcess,
    command: list[str],
    environment: dict[str, str],
    directory: Path | None,
    poll: Callable[[], None],
) -> None:
    """Runs the script and passes on its output. If standard error is a terminal, shows a progress line below it."""
    terminal, progress = ProgressTerminal(_STDERR), ProgressLine()
    began = monotonic()
    next_seconds = 0.0

    def tick() -> None:
        nonlocal next_seconds
        now = monotonic()
        if now < next_seconds:
            return
        next_seconds = now + _PROGRESS_SECONDS
        poll()
        shown = ""
        if is_foreground_terminal(_STDERR):
            workers = summary.read_workers(directory)
            shown = progress.line(workers[0] if workers else None, now - began, terminal_size(_STDERR)[0])
        terminal.show(shown)

    with pseudo_terminal(_STDERR) as (outer, inner):
        child.start(command, environment, inner if _is_same_terminal() else None, inner)
        process = child.process
        try:
            relay_output(outer, lambda: process.poll() is not None, terminal.write, tick)
        finally:
            terminal.show("")


def _is_same_terminal() -> bool:
    try:
        return os.isatty(_STDOUT) and os.fstat(_STDOUT).st_rdev == os.fstat(_STDERR).st_rdev
    except OSError:
        return False


def _no_poll() -> None:
    return None


@contextlib.contextmanager
def _private_directory() -> Iterator[Path | None]:
    """Yields a temporary directory for the workers' counters. Prints a message and yields None if that fails."""
    try:
        directory = tempfile.TemporaryDirectory(prefix="neuron-run-", ignore_cleanup_errors=True)
    except OSError as error:
        write_stderr(f"{_COMMAND}: no summary: {tempfile.gettempdir()}: {error.strerror}; the script runs all the same")
        yield None
        return
    with directory as name:
        yield Path(name)


OPTIONS = (
    Option("cores", "run on these NeuronCores, such as 0-3 or 2,3; sets NEURON_RT_VISIBLE_CORES", value="LIST"),
    Option(
        "nproc-per-node",
        "start so many workers with torchrun, a NeuronCore each",
        short="n",
        aliases=("nproc_per_node",),
        value="WORKERS",
    ),
    SIMULATE_OPTION,
    Option(
        "export-sysfs",
        "export the simulated host to this directory, as a tree like the driver's",
        value="DIR",
        completes=FILES,
    ),
    SOCKET_OPTION,
    Option("wait", "wait at most this many seconds for free cores; 0 waits forever", value="SECONDS"),
    Option("diag", "test the devices first, with this level of neuron-diag; a failed test stops", value="LEVEL"),
    Option("top", "show neuron-top while the script runs, and the script's output after neuron-top ends"),
    Option(
        "summary-json",
        "write the summary to this file as JSON too; - is standard output",
        value="FILE",
        completes=FILES,
    ),
    Option(
        "profile",
        "write a profile of each worker into this directory, for neuron-profile, TensorBoard and Perfetto",
        value="DIR",
        completes=FILES,
    ),
    Option("profile-steps", "profile only these steps, such as 10:15; 10: means from the tenth on", value="FIRST:LAST"),
    Option(
        "estimate",
        "say what the run would need, take and cost on these instance types, or on all",
        value="TYPES",
        completes=INSTANCE_TYPES,
    ),
    Option("calibrate", "narrow the estimate by the measured rows in this file", value="FILE", completes=FILES),
    Option("prices", "estimate with the prices in this file too", value="FILE", completes=FILES),
    Option("shapes-only", "estimate without computing: count FLOPs and bytes from shapes, of models of any size"),
    Option("workers", "estimate so many workers instead of those that ran, a core each", value="N"),
    Option("batch", "estimate these batches of a worker, such as 8,16,32", value="SIZES"),
    Option("tensor-parallel", "estimate each layer divided between so many workers", value="N"),
    Option("pipeline-parallel", "estimate the layers divided into so many stages", value="N"),
    Option("samples", "samples of an epoch, for its cost", value="N"),
    Option("advise", "print all performance advice, with sources; with --estimate, also what it does not predict"),
    Option("ignore", "leave out this advice, such as float32,nan", value="RULES"),
    Option("no-advice", "print no performance advice"),
    Option("quiet", "neither progress nor summary", short="q"),
    Option("module", "run a module, as python -m", short="m", value="MODULE", ends=True),
    *INFORMATION_OPTIONS,
)
USAGE = "neuron-run [options] script.py | - [arguments …]"
SUMMARY = "Runs a PyTorch training script for Trainium on simulated NeuronCores, and prints a summary."
NOTES = """\
Options of neuron-run come before the script. Arguments after the script belong to the script.
The exit code is that of the script or of the first worker that failed, or one of those below.
"""
VARIABLES = (
    ("NEURON_RT_VISIBLE_CORES", "the NeuronCores to use; --cores overrides it"),
    ("NEURON_RT_NUM_CORES", "the number of NeuronCores to use; --cores overrides it"),
    ("NEURON_RT_INSPECT_ENABLE=1, NEURON_RT_INSPECT_OUTPUT_DIR", "as --profile"),
    ("NEURONTOOLS_DEVICE", "the name of the device in torch, xla or neuron"),
)
EXIT_CODES = (
    (1, "an option is unknown, PyTorch is not installed, or something failed"),
    (2, "an option has an invalid value, or there is no script"),
    (4, "this user may not use the socket"),
    (5, "a test of the devices failed"),
    (12, "no daemon answers"),
    (124, "the NeuronCores did not become free, or the daemon did not answer, in time"),
    *END_CODES,
)


def split_command_line(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Splits the command line into the options of neuron-run, and the script with its arguments."""
    takes_value = {flag for option in OPTIONS if option.value for flag in option.flags}
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if argument == "--":
            return parse_options(OPTIONS, arguments[:position]), arguments[position + 1 :]
        if not argument.startswith("-") or argument == "-":
            break
        position += 2 if argument in takes_value else 1
        if argument.partition("=")[0] in ("-m", "--module"):
            break
    return parse_options(OPTIONS, arguments[:position]), arguments[position:]


if __name__ == "__main__":
    main()
