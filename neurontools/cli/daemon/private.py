"""Private monitor daemon that one command starts, for example for `--simulate`. It ends with the command."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from time import monotonic

from neurontools.rpc.socket_path import LONGEST_PATH_BYTES
from neurontools.util.command_lifecycle import end_on_signal
from neurontools.util.errors import EXIT_FAILURE, EXIT_TIMED_OUT, EXIT_USAGE, UserError
from neurontools.util.signals import defer_signals

START_SECONDS = 60.0  # time limit for a start, which took up to 24 s at a load average of 20
STOP_SECONDS = 2.0
REMOVE_TREE_SECONDS = 20.0  # time limit for removing an exported sysfs tree of thousands of files
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_LONGEST_BASE_BYTES = LONGEST_PATH_BYTES - len("/neurontools-XXXXXXXX/neurond.sock.attach")


class PrivateDaemon:
    """Context manager of a private daemon that simulates an instance type or reads this host's devices.

    Entry waits until the daemon is ready, and raises UserError if the daemon fails to start. On exit, SIGTERM or
    SIGHUP, the daemon ends and its directory is removed. After SIGKILL of the command, the kernel ends the daemon and
    the directory remains. Signals are handled only if the context is entered in the main thread.
    """

    def __init__(
        self,
        instance_type: str | None,
        *,
        interval_seconds: float | None = None,
        load: str | None = None,
        export_sysfs: str | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._instance_type = instance_type
        self._interval_seconds = interval_seconds
        self._load = load
        self._export_sysfs = export_sysfs
        self._start_seconds = start_seconds
        self._directory = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._handled: list[signal.Signals] = []

    @property
    def socket_path(self) -> str:
        return f"{self._directory}/neurond.sock"

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def __enter__(self) -> PrivateDaemon:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING_SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, end_on_signal)
                    self._handled.append(number)
        try:
            # A Unix socket path is limited to 107 bytes, so /tmp replaces a long TMPDIR.
            base = tempfile.gettempdir()
            with defer_signals():
                self._directory = tempfile.mkdtemp(
                    prefix="neurontools-",
                    dir=base if len(os.fsencode(base)) <= _LONGEST_BASE_BYTES else "/tmp",  # noqa: S108
                )
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        ready, tell_ready = os.pipe()
        try:
            with open(f"{self._directory}/stderr", "wb") as narration, defer_signals():  # noqa: PTH123
                self._child = subprocess.Popen(
                    [
                        # -P keeps the current directory out of sys.path.
                        *(sys.executable, "-P", "-m", "neurond"),
                        *(("--simulate", self._instance_type) if self._instance_type else ()),
                        *("--socket", self.socket_path),
                        *(("--interval", str(self._interval_seconds)) if self._interval_seconds else ()),
                        *(("--load", self._load) if self._load else ()),
                        *(("--export-sysfs", self._export_sysfs) if self._export_sysfs else ()),
                        *("--log-level", "error", "--ready-fd", str(tell_ready), "--exit-with-parent"),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=narration,
                    pass_fds=(tell_ready,),
                    start_new_session=True,  # Ctrl-C must signal only the command, not the daemon
                )
            os.close(tell_ready)
            tell_ready = -1
            if not _wait_until_ready(ready, monotonic() + self._start_seconds):
                raise self._did_not_start(self._child)
        finally:
            os.close(ready)
            if tell_ready >= 0:
                os.close(tell_ready)

    def _did_not_start(self, child: subprocess.Popen[bytes]) -> UserError:
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            problem = f"the private monitor daemon was not ready within {self._start_seconds:.3g} s"
            return UserError(f"{problem}; is the host very busy?", EXIT_TIMED_OUT)
        with open(f"{self._directory}/stderr", "rb") as narration:  # noqa: PTH123
            lines = narration.read().decode(errors="replace").split("\n")
        cause = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {child.returncode}")
        exit_code = EXIT_USAGE if child.returncode == EXIT_USAGE else EXIT_FAILURE
        task = f"simulate {self._instance_type}" if self._instance_type else "read the devices of this host"
        return UserError(f"can't {task}: {cause.removeprefix('neurond: ')}", exit_code)

    def _stop(self) -> None:
        try:
            with defer_signals():
                child, self._child = self._child, None
                if child is not None:
                    child.terminate()
                    try:
                        child.wait(REMOVE_TREE_SECONDS if self._export_sysfs else STOP_SECONDS)
                    except subprocess.TimeoutExpired:
                        child.kill()
                        child.wait()
                if self._directory:
                    shutil.rmtree(self._directory, ignore_errors=True)
        finally:
            for number in self._handled:
                signal.signal(number, signal.SIG_DFL)
            self._handled = []


def _wait_until_ready(descriptor: int, deadline: float) -> bool:
    """Waits for the daemon's line `ready`. Returns False if the daemon ends or the deadline passes first."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    output = b""
    while b"\n" not in output:
        remaining_seconds = deadline - monotonic()
        if remaining_seconds <= 0 or not poll.poll(remaining_seconds * 1000):
            return False
        part = os.read(descriptor, 64)
        if not part:
            return False
        output += part
    return output.startswith(b"ready")
