"""Reading the configuration again, in a process of its own: what checks it takes much memory, which stays taken."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import fields

from neurond.settings import Settings
from neurontools.util.errors import EXIT_USAGE, UserError

RELOADABLE = frozenset(("log_level", "health_thresholds", "actions", "tls_summary", "tls_full"))
"""The settings that a running daemon takes over; files of certificates are read again by themselves."""

_OF_A_START = frozenset(("ready_fd", "exit_with_parent"))
_VALID = "configuration is valid: "
_LONGEST_SECONDS = 60.0
_MOST_BYTES = 1 << 20


async def reread(arguments: Sequence[str]) -> Settings:
    """The settings that these flags, their configuration file and this environment give now; UserError says why not."""
    command = (sys.executable, "-P", "-m", "neurond", *arguments, "--check-config")
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_MOST_BYTES,
    )
    try:
        async with asyncio.timeout(_LONGEST_SECONDS):
            out, err = await child.communicate()
    except TimeoutError:
        raise UserError(f"it could not be read within {_LONGEST_SECONDS:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    told = out.decode("utf-8", "replace")
    if child.returncode or not told.startswith(_VALID):
        lines = err.decode("utf-8", "replace").strip().splitlines() or [f"exit code {child.returncode}"]
        raise UserError(lines[-1].removeprefix("neurond: "), EXIT_USAGE)
    try:
        return Settings.from_json(told.removeprefix(_VALID))
    except (TypeError, ValueError):
        raise UserError("another version of neurond was installed since it began; restart it") from None


def changes(before: Settings, after: Settings) -> tuple[list[str], list[str]]:
    """The names of what has changed: of that, what a running daemon takes over, and what takes a restart."""
    names = [
        field.name
        for field in fields(Settings)
        if field.name not in _OF_A_START and getattr(before, field.name) != getattr(after, field.name)
    ]
    return [name for name in names if name in RELOADABLE], [name for name in names if name not in RELOADABLE]
