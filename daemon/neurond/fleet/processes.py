"""The processes of a simulated fleet: started together, ended together; one that dies takes its own hosts alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from neurond.fleet.plan import HostPlan
from neurontools.util.errors import EXIT_FAILURE, UserError
from neurontools.util.signals import defer_signals

_STOP_SECONDS = 10.0


class Processes:
    """A context with all hosts serving. Entering raises UserError, in the words of the host that can't be served."""

    def __init__(self, plans: Sequence[HostPlan], process_count: int) -> None:
        self._shares = [plans[first::process_count] for first in range(min(process_count, len(plans)))]
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> dict[str, int]:
        """The process of each host, by name."""
        return {
            plan.place.name: child.pid
            for share, child in zip(self._shares, self._children, strict=True)
            for plan in share
        }

    def __enter__(self) -> Processes:
        try:
            for share in self._shares:
                with defer_signals():  # or a process would be there that nobody knows
                    self._children.append(_started(share))
            for child in self._children:
                assert child.stdout is not None  # noqa: S101 - it was made with a pipe
                said = child.stdout.readline().decode("utf-8", "replace").strip()
                if said != "ready":
                    raise UserError(said or f"a process of the fleet ended with code {child.wait()}", EXIT_FAILURE)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with defer_signals():
            self._end()

    def ended(self) -> list[str]:
        """The hosts whose process has ended."""
        return [
            plan.place.name
            for share, child in zip(self._shares, self._children, strict=True)
            if child.poll() is not None
            for plan in share
        ]

    def _end(self) -> None:
        for child in self._children:
            child.terminate()
        for child in self._children:
            try:
                child.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()


def _started(share: Sequence[HostPlan]) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        # -P: the current directory is no place to import from.
        [sys.executable, "-P", "-m", "neurond.fleet.worker", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the command, which then ends them
    )
    assert child.stdin is not None  # noqa: S101 - it was made with a pipe
    try:
        child.stdin.write("".join(f"{plan.settings.to_json()}\n" for plan in share).encode())
        child.stdin.close()
    except BrokenPipeError:
        pass  # it has ended, and says why
    return child
