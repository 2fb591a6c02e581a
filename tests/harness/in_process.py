"""Our commands without a process of their own, in the environment of the tests and any directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness import command
from tests.harness.command import Done


def call_main(main: Callable[[], Any], *arguments: str, cwd: Path | None = None, **environment: str) -> Done:
    """Calls the `main` of a command, which ends as if its process had; only where no signal and no terminal matters."""
    with contextlib.chdir(cwd or Path.cwd()):
        return command.call_main(main, ["command", *arguments], {**os.environ, **environment})
