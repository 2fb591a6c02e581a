"""A driver's tree that moves by itself: of an instance that a daemon of its own simulates."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from neurontools.driver.environment import DEV_ROOT, PROC_ROOT, SYSFS_ROOT, Roots
from neurontools.driver.tree_export import DRIVER_VERSION
from neurontools.testing import child
from neurontools.testing.driver_tree import temporary_directory

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_SHORT = "/tmp"  # noqa: S108 - mkdtemp makes a directory of our own in it


class SimulatedDriver:
    """A context with a running `neurond --simulate TYPE --export-sysfs`, with synthetic load if a scenario is given.

    Entering raises RuntimeError with the daemon's own words when it doesn't start. Training processes that attach to
    `socket` show up in the tree.
    """

    def __init__(
        self,
        instance_type: str,
        *,
        scenario: str | None = None,
        seed: int = 0,
        interval_seconds: float = 1.0,
        driver_version: str = DRIVER_VERSION,
    ) -> None:
        self._flags = ["--simulate", instance_type, "--interval", str(interval_seconds), "--seed", str(seed)]
        self._flags += ["--export-driver-version", driver_version, *(["--load", scenario] if scenario else [])]
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._runtime: tempfile.TemporaryDirectory[str] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self.directory = ""
        self.socket = ""

    @property
    def pid(self) -> int:
        """The process that moves the tree; RuntimeError before it was entered."""
        if self._child is None:
            raise RuntimeError("the simulated driver is not running; use it as a context")
        return self._child.pid

    @property
    def roots(self) -> Roots:
        """Its roots, for readers in this process."""
        return Roots(f"{self.directory}/sys", f"{self.directory}/proc", f"{self.directory}/dev")

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make our own commands read this tree."""
        roots = self.roots
        return {SYSFS_ROOT: roots.sys, PROC_ROOT: roots.proc, DEV_ROOT: roots.dev}

    def __enter__(self) -> Self:
        self._temporary = temporary_directory()
        self.directory = f"{self._temporary.name}/host"
        # Not beside the tree: TMPDIR may be longer than a socket's path can be.
        self._runtime = tempfile.TemporaryDirectory(
            prefix="neuron-", dir=_SHORT if os.access(_SHORT, os.W_OK) else None
        )
        self.socket = f"{self._runtime.name}/neurond.sock"
        log = Path(self._temporary.name) / "log"
        readable, writable = os.pipe()
        try:
            with log.open("wb") as narration:
                self._child = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", "neurond", *self._flags),
                        *("--socket", self.socket, "--export-sysfs", self.directory),
                        *("--ready-fd", str(writable), "--exit-with-parent", "--log-level", "error"),
                    ],
                    pass_fds=(writable,),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=narration,
                )
            os.close(writable)
            writable = -1
            ready, _, _ = select.select([readable], [], [], _START_SECONDS)
            if not ready or os.read(readable, 16) != b"ready\n":
                self._child.kill()
                self._child.wait()
                raise RuntimeError(f"the simulated driver did not start: {log.read_text('utf-8').strip()}")
        except BaseException:
            self._clean_up()
            raise
        finally:
            os.close(readable)
            if writable >= 0:
                os.close(writable)
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            child.end(self._child, _STOP_SECONDS)
        self._clean_up()

    def _clean_up(self) -> None:
        for directory in (self._temporary, self._runtime):
            if directory is not None:
                directory.cleanup()
