"""`neuron-run`: runs a training script on simulated NeuronCores and says how it went."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Any

from neurontools import socket_path
from neurontools.cli import run_options, run_summary
from neurontools.cli.options import about
from neurontools.cli.output import tell
from neurontools.core_request import NUM_CORES, VISIBLE_CORES, CoreRequest, parse_visible_cores
from neurontools.errors import EXIT_INTERRUPTED, EXIT_TIMED_OUT, EXIT_USAGE, UserError

_COMMAND = "neuron-run"
_MOST_WORKERS = 1024
_PROGRESS_SECONDS = 0.5
_WAIT_POLL_SECONDS = 0.5
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Runs the command; the exit code is the script's."""
    try:
        exit_code = _main(sys.argv[1:])
    except UserError as error:
        tell(f"{_COMMAND}: {error}")
        exit_code = error.exit_code
    except KeyboardInterrupt:
        exit_code = EXIT_INTERRUPTED
    sys.exit(exit_code)


def _main(arguments: list[str]) -> int:
    given, script = run_options.split(arguments)
    for name, print_about in _ABOUT.items():
        if name in given:
            sys.stdout.write(print_about(given[name]))
            return 0
    if "module" not in given:
        if not script:
            raise UserError(f"no script given; usage: {run_options.USAGE}", EXIT_USAGE)
        if not Path(script[0]).is_file():
            raise UserError(f"{script[0]}: no such file; give the path of a Python script", EXIT_USAGE)
    if "simulate" in given and "socket" in given:
        raise UserError("--simulate and --socket exclude each other; leave one of them out", EXIT_USAGE)
    if "export-sysfs" in given and "simulate" not in given:
        raise UserError("--export-sysfs is for a simulated host; add --simulate TYPE", EXIT_USAGE)
    with contextlib.ExitStack() as stack:
        environment = dict(os.environ)
        if "simulate" in given:
            from neurontools.cli.private_daemon import PrivateDaemon

            daemon = PrivateDaemon(given["simulate"], export_sysfs=given.get("export-sysfs"))
            environment[socket_path.VARIABLE] = stack.enter_context(daemon).socket_path
        elif "socket" in given:
            environment[socket_path.VARIABLE] = socket_path.checked(given["socket"], "--socket")
        directory = Path(stack.enter_context(_private_directory()))
        environment["NEURONTOOLS_SUMMARY_DIRECTORY"] = str(directory)
        workers = run_options.count(given, "nproc-per-node", _MOST_WORKERS)
        _choose_cores(given, workers, environment)
        if "wait" in given:
            _wait_for_cores(run_options.count(given, "wait", 10**8) or 0, workers or 1, environment)
        return _run(_command(given, workers, script), given, environment, directory)


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
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
    return [*launcher, "-m", "neurontools.runtime", *target]


def _run(command: list[str], given: dict[str, str], environment: dict[str, str], directory: Path) -> int:
    began = monotonic()
    with contextlib.ExitStack() as stack:
        output: Any = None
        if "top" in given:
            output = stack.enter_context((directory / "output.log").open("wb"))
        # A process group of its own would take the terminal from the script; signals are forwarded instead.
        child = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        with _forwarding(child):
            if "top" in given:
                _show_top(child, environment)
            elif "quiet" in given or not sys.stderr.isatty():
                child.wait()
            else:
                _show_progress(child, directory)
    exit_code = child.returncode if child.returncode >= 0 else 128 - child.returncode
    if "top" in given:
        sys.stdout.write((directory / "output.log").read_text(errors="replace"))
        sys.stdout.flush()
    workers = run_summary.read_workers(directory)
    document = run_summary.combined(workers, exit_code, monotonic() - began)
    if workers and "quiet" not in given:
        sys.stderr.write("\n" + run_summary.text(document))
    if "summary-json" in given:
        _write_summary(given["summary-json"], document)
    return exit_code


def _write_summary(target: str, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    try:
        Path(target).write_text(text)
    except OSError as error:
        raise UserError(f"--summary-json {target}: {error.strerror}; give a file that can be written") from None


@contextlib.contextmanager
def _forwarding(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hands signals on to the script, which ends as it likes; Ctrl-C reaches it through the terminal anyway."""

    def forward(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGINT or not sys.stdin.isatty():
            child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_progress(child: subprocess.Popen[bytes], directory: Path) -> None:
    shown = ""
    while True:
        try:
            child.wait(_PROGRESS_SECONDS)
            break
        except subprocess.TimeoutExpired:
            line = _progress_line(directory)
            if line and line != shown:
                sys.stderr.write(f"\r\x1b[K{line}")
                sys.stderr.flush()
                shown = line
    if shown:
        sys.stderr.write("\r\x1b[K")


def _progress_line(directory: Path) -> str:
    """What the first worker wrote last: its steps, their rate, graphs and HBM."""
    from neurontools.units import bytes_text, count_text

    for path in sorted(directory.glob("*.progress")):
        try:
            state = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        rate = state["steps_per_second"]
        return (
            f"step {count_text(state['steps_total'])}"
            + (f"  {rate:.1f} steps/s" if rate else "")
            + f"  {state['graphs_total']} graphs  HBM {bytes_text(state['hbm_bytes'])}"
        )
    return ""


def _show_top(child: subprocess.Popen[bytes], environment: dict[str, str]) -> None:
    """neuron-top in the terminal until the script ends."""
    beside = Path(sys.executable).parent  # an environment's commands need not be on the PATH
    program = shutil.which("neuron-top", path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if program is None:
        child.terminate()
        child.wait()
        raise UserError("--top: neuron-top is not installed; install neurontools, or leave --top out")
    top = subprocess.Popen([program], env=environment)
    child.wait()
    top.terminate()
    top.wait()


def _wait_for_cores(longest_seconds: float, workers: int, environment: dict[str, str]) -> None:
    """Returns when the cores that the environment asks for are free."""
    request = CoreRequest.from_environment(environment)
    deadline = monotonic() + longest_seconds if longest_seconds else None
    told = False
    while not _are_free(request, workers, environment):
        if deadline is not None and monotonic() > deadline:
            raise UserError(
                f"--wait {longest_seconds:g}: the NeuronCores did not become free; see neuron-ls for who has them",
                EXIT_TIMED_OUT,
            )
        if not told:
            tell(f"{_COMMAND}: waiting for free NeuronCores")
            told = True
        sleep(_WAIT_POLL_SECONDS)


def _are_free(request: CoreRequest, workers: int, environment: dict[str, str]) -> bool:
    from neurontools.cli.ask import ask
    from neurontools.rpc import neuron_pb2

    path = socket_path.named(None, environment) or socket_path.default(environment)
    reply = neuron_pb2.GetSnapshotResponse.FromString(ask(path, "/neurontools.v1.MonitorService/GetSnapshot", b"", 5.0))
    snapshot = reply.snapshot
    lnc = request.logical_neuroncore_config or snapshot.instance.logical_neuroncore_config or 1
    owned = {core.index // lnc for core in snapshot.cores if core.HasField("owner_pid")}
    total = len(snapshot.cores) // lnc
    if request.first is not None and request.count is not None:
        return not owned & set(range(request.first, request.first + request.count))
    needed = max(request.count or total, workers)
    if workers > 1:
        return not owned & set(range(workers))
    return any(not owned & set(range(first, first + needed)) for first in range(total - needed + 1))


@contextlib.contextmanager
def _private_directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="neuron-run-", ignore_cleanup_errors=True) as directory:
        yield directory


_ABOUT = about(_COMMAND, run_options)

if __name__ == "__main__":
    main()
