"""Trains on two NeuronCores of a simulated trn1.32xlarge and shows it with neuron-ls.

The hardware is simulated. Process, held cores, bytes, FLOPs and utilization are measured. It takes about 15 s.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from neurontools.cli.daemon.private import PrivateDaemon
from neurontools.model import Process, Snapshot
from neurontools.rpc import call, neuron_pb2
from neurontools.rpc.call import CallError
from neurontools.rpc.convert import from_message
from neurontools.util.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_TIMED_OUT, UserError
from neurontools.util.units import bytes_text, count_text, flops_text, percent_text

INSTANCE_TYPE = "trn1.32xlarge"
TRAINING_SECONDS = 8
START_SECONDS = 60.0  # the first import of torch takes a while
END_SECONDS = 30.0
NEURON_LS = Path(sys.executable).with_name("neuron-ls")
TRAIN = Path(__file__).resolve().with_name("train_mlp.py")
COMMAND = f"{TRAIN.parent.name}/{TRAIN.name}"
T = TypeVar("T")


class Watch:
    """Reads the daemon for the demo."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._first_sequence: int | None = None  # time of the first snapshot with an execution

    def snapshot(self) -> Snapshot:
        """Returns the latest snapshot."""
        reply = call.call(self.socket, "/neurontools.v1.MonitorService/GetSnapshot", b"", timeout_seconds=10)
        return from_message(Snapshot, neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot)

    def measured(self, pid: int) -> tuple[Snapshot, Process] | None:
        """Returns a snapshot with rates of this process, and the process; None before its first full period."""
        snapshot = self.snapshot()
        for process in snapshot.processes:
            if process.pid == pid and process.executions_per_second:
                self._first_sequence = self._first_sequence or snapshot.sequence
                if snapshot.sequence >= self._first_sequence + 2:
                    return snapshot, process
        return None

    def list_devices(self) -> None:
        """Prints the output of neuron-ls, cut to the width of the terminal."""
        wide = sys.stdout.isatty() and terminal_columns() >= 200
        shown = "neuron-ls -w" if wide else "neuron-ls"
        done = subprocess.run(
            [NEURON_LS, *(["-w"] if wide else []), "--socket", self.socket], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UserError(f"neuron-ls ended with {done.returncode}: {last_line(done.stderr)}")
        print(f"\n$ {shown}")
        for line in done.stdout.splitlines():
            print(line[: terminal_columns()])
        print()


def main() -> int:
    """Runs the demo and leaves no process behind."""
    begun = time.monotonic()
    if not NEURON_LS.exists():
        raise UserError(f"{NEURON_LS} is not there; install the project first: pip install -e '.[runtime]'")
    with PrivateDaemon(INSTANCE_TYPE) as daemon:
        print(f"A monitor daemon (neurond, PID {daemon.pid}) simulates a {INSTANCE_TYPE}: 16 devices, 32 NeuronCores.")
        watch = Watch(daemon.socket_path)
        with training(daemon.socket_path) as (process, errors):
            print(f"A PyTorch process (PID {process.pid}) asks for two: NEURON_RT_NUM_CORES=2 python {COMMAND}")
            snapshot, seen = wait(
                "it imports torch, takes its cores and trains",
                lambda: watch.measured(process.pid),
                START_SECONDS,
                process,
                errors,
            )
            watch.list_devices()
            show(snapshot, seen)
            wait("it trains to its end", lambda: process.poll() is not None or None, END_SECONDS, None, errors)
            if process.returncode:
                raise UserError(f"the training ended with {process.returncode}: {written(errors)}")
        wait("its cores become free", lambda: is_free(watch.snapshot()) or None, END_SECONDS, None, errors)
        print("The process has ended, and at that moment its NeuronCores were free again:")
        watch.list_devices()
    print(f"Daemon and socket are gone. That was the demo, {time.monotonic() - begun:.0f} s.")
    print(f"Yours: neurond --simulate {INSTANCE_TYPE} &  python examples/train_mlp.py &  neuron-ls")
    return 0


def show(snapshot: Snapshot, process: Process) -> None:
    """Prints the process as the snapshot has it."""
    print(f"PID {process.pid} of {process.user or process.uid}: {process.command}")
    print(
        f"  holds NeuronCores {', '.join(map(str, process.core_indices))}, as the kernel told the daemon whose they are"
    )
    for index in process.core_indices:
        core = snapshot.cores[index]
        speed = f"{percent_text(core.utilization_ratio)} busy, {flops_text(core.flops_per_second)}"
        print(f"  core {index}: {speed}; parameters {bytes_text(core.memory.constants_bytes)}, ", end="")
        print(f"gradients, inputs and optimizer {bytes_text(core.memory.tensors_bytes)}")
    names = sorted({model.name for model in process.models})
    print(
        f"  models: {len(process.models)} ({', '.join(names)}); {process.executions_per_second:.0f} executions/s, ",
        end="",
    )
    completed = "-" if process.executions is None else count_text(process.executions.completed_total)
    print(f"{completed} so far; vCPUs in use: {process.vcpu_user_ratio or 0:.1f}")


def is_free(snapshot: Snapshot) -> bool:
    """Returns whether all cores are free."""
    return all(core.owner_pid is None for core in snapshot.cores)


@contextmanager
def training(socket: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Runs the training for the length of a block. Yields the process and its standard error."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            # neuron-ls shows this name; PATH makes it this interpreter
            ["python", COMMAND, "--seconds", str(TRAINING_SECONDS), "--quiet"],
            cwd=TRAIN.parents[1],
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
                "NEURON_RT_NUM_CORES": "2",
                "NEURON_RT_VISIBLE_CORES": "",
                "NEURONTOOLS_SOCKET": socket,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # the demo handles Ctrl-C and ends the training
        )
        try:
            yield process, errors
        finally:
            process.kill()
            process.wait()


def wait(
    what: str,
    look: Callable[[], T | None],
    seconds: float,
    process: subprocess.Popen[bytes] | None,
    errors: IO[bytes],
) -> T:
    """Calls `look` until it returns a value, and shows the elapsed time. Raises when `process` ends before."""
    begun = time.monotonic()
    live = sys.stdout.isatty()
    while (answer := look()) is None:
        passed = time.monotonic() - begun
        if process is not None and process.poll() is not None:
            raise UserError(f"the training ended with {process.returncode}: {written(errors)}")
        if passed > seconds:
            raise UserError(f"{what}: not done within {seconds:.0f} s; is this machine very busy?", EXIT_TIMED_OUT)
        if live:
            print(f"\r  ... {what} ({passed:.1f} s)", end="", flush=True)
        threading.Event().wait(0.1)
    print(f"{chr(13) if live else ''}  ... {what} ({time.monotonic() - begun:.1f} s)", flush=True)
    return answer


def written(errors: IO[bytes]) -> str:
    """Returns the last line of the training's standard error."""
    errors.seek(0)
    return last_line(errors.read().decode(errors="replace"))


def last_line(text: str) -> str:
    """Returns the last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it gave no reason")


def terminal_columns() -> int:
    """Returns the width of the terminal; without one, more than any line has."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILURE)
    except (UserError, CallError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, UserError) else EXIT_FAILURE)
