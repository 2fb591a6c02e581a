"""The end of a process that was started for a test."""

from __future__ import annotations

import subprocess


def end(child: subprocess.Popen[bytes], patience_seconds: float) -> None:
    """Asks it to end, and kills it when it hasn't after so long."""
    child.terminate()
    try:
        child.wait(patience_seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
