"""SSH tunnels: local sockets that lead to daemons on other hosts. Each connection runs the user's own ssh.

`ssh HOST neuron-ls --relay` connects its standard input and output to the daemon on that host. The ssh process gets the
accepted connection itself, so this process copies no data. Keys, known hosts and jump hosts follow
ssh_config(5). No port is opened, and ssh asks nothing on the terminal (BatchMode). The ssh processes to a host share
one connection (ControlMaster).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import socket
import subprocess
from collections.abc import Mapping

from neurontools.fleet.hosts import HostAddress
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt

SSH_VARIABLE = "NEURONTOOLS_SSH"  # command to use in place of ssh, like RSYNC_RSH and GIT_SSH_COMMAND
REMOTE_VARIABLE = "NEURONTOOLS_REMOTE_LS"  # the neuron-ls command on the other host
_MOST_RUNS = 4  # limit of ssh processes at a time: one for summaries, the others for views of the host
_LONGEST_REASON_BYTES = 4096
_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=2"),
    *("-o", "ControlMaster=auto", "-o", "ControlPersist=no", "-T", "-e", "none"),
)


def ssh_command(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the words of the ssh command. Raises UserError if NEURONTOOLS_SSH is not valid shell syntax."""
    text = environment.get(SSH_VARIABLE, "").strip() or "ssh"
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"{SSH_VARIABLE}: {error}; write a command as a shell reads it", EXIT_USAGE) from None
    return words


class SshTunnel:
    """A local socket that leads to the daemon of a host. Not thread-safe. `close` also ends the ssh processes."""

    def __init__(self, place: HostAddress, directory: str, environment: Mapping[str, str]) -> None:
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
        """Returns the descriptor for a selector, which is readable when a connection waits for `accept`."""
        return self._listener.fileno()

    def accept(self) -> None:
        """Accepts a connection and runs ssh for it. Closes the connection if too many ssh processes run."""
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
                    start_new_session=True,  # Ctrl-C must not end ssh, and ssh must not ask for a password
                )
            except OSError:
                return
        assert run.stderr is not None  # noqa: S101 - stderr is a pipe
        os.set_blocking(run.stderr.fileno(), False)
        self._runs.append(run)

    def reason(self) -> str:
        """Returns the last line that the latest ssh process wrote to stderr; "" if it wrote nothing."""
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
        """Ends the tunnel without waiting for its ssh processes."""
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)  # noqa: PTH108
        for run in self._runs:
            if run.poll() is None:
                run.terminate()

    def wait(self, seconds: float) -> None:
        """Waits at most `seconds` for each ssh process to end, then kills it. Call this after `close`."""
        for run in self._runs:
            try:
                run.wait(seconds)
            except subprocess.TimeoutExpired:
                run.kill()
                run.wait()
            if run.stderr is not None:
                run.stderr.close()
        self._runs.clear()
