"""A host's daemon at a socket of this host, by SSH: each connection to it becomes a run of the person's own ssh.

`ssh HOST neuron-ls --relay` talks with the daemon there over its standard input and output, and gets the connection
itself as these: nothing is copied here. So keys, known hosts, names, jumps and sharing of connections are those of
ssh_config(5), and no port is opened. Nothing is asked in the terminal (BatchMode). Without a shared connection of the
person's own the second run to a host goes over the first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import socket
import subprocess
from collections.abc import Mapping

from neurontools.fleet.hosts import Place
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt

SSH_VARIABLE = "NEURONTOOLS_SSH"  # the command in place of ssh, as RSYNC_RSH and GIT_SSH_COMMAND have it
REMOTE_VARIABLE = "NEURONTOOLS_REMOTE_LS"  # the command neuron-ls on the other host
_MOST_RUNS = 4  # at a time: the summaries, and what looking at a host takes
_LONGEST_REASON_BYTES = 4096
_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=2"),
    *("-o", "ControlMaster=auto", "-o", "ControlPersist=no", "-T", "-e", "none"),
)


def ssh_command(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The words of the local command; UserError when the variable holds none."""
    text = environment.get(SSH_VARIABLE, "").strip() or "ssh"
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"{SSH_VARIABLE}: {error}; write a command as a shell reads it", EXIT_USAGE) from None
    return words


class Tunnel:
    """The socket that stands for the daemon of a host; for one thread. `close` ends it and all that runs over it."""

    def __init__(self, place: Place, directory: str, environment: Mapping[str, str]) -> None:
        name = hashlib.sha256(place.address.encode()).hexdigest()[:12]
        self.path = f"{directory}/{name}"
        self._command = (
            *ssh_command(environment),
            *(*_OPTIONS, "-o", f"ControlPath={directory}/%C", "--", place.address),
            f"{environment.get(REMOTE_VARIABLE, '').strip() or 'neuron-ls'} --relay",
        )
        self._runs: list[subprocess.Popen[bytes]] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(self.path)
            self._listener.listen(_MOST_RUNS)
            self._listener.setblocking(False)
        except BaseException:
            self._listener.close()
            raise

    def fileno(self) -> int:
        """For a selector: readable when `accept` has something to do."""
        return self._listener.fileno()

    def accept(self) -> None:
        """Take a connection and run ssh for it; one too many is closed."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        with connection:
            ended = [run for run in self._runs if run.poll() is not None]
            self._runs = [run for run in self._runs if run not in ended]
            for run in ended:
                if run.stderr is not None:
                    run.stderr.close()
            if len(self._runs) >= _MOST_RUNS:
                return
            try:
                run = subprocess.Popen(
                    self._command,
                    stdin=connection.fileno(),
                    stdout=connection.fileno(),
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for the view, and no password is asked on its terminal
                )
            except OSError:
                return
        assert run.stderr is not None  # noqa: S101 - it was made with a pipe
        os.set_blocking(run.stderr.fileno(), False)
        self._runs.append(run)

    def reason(self) -> str:
        """What the latest run said of its failure: its last line; "" when it said nothing."""
        if not self._runs:
            return ""
        stderr = self._runs[-1].stderr
        said = b""
        if stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                said = os.read(stderr.fileno(), _LONGEST_REASON_BYTES)
        lines = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
        return excerpt(lines[-1].strip(), 200) if lines else ""

    def close(self) -> None:
        """End it; does not wait."""
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)  # noqa: PTH108
        for run in self._runs:
            if run.poll() is None:
                run.terminate()

    def wait(self, seconds: float) -> None:
        """Wait so long at most for each of its runs to have ended, after `close`."""
        for run in self._runs:
            try:
                run.wait(seconds)
            except subprocess.TimeoutExpired:
                run.kill()
                run.wait()
            if run.stderr is not None:
                run.stderr.close()
        self._runs.clear()
