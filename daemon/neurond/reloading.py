"""Reloads the configuration on SIGHUP. A child process validates it, because pydantic's memory would stay allocated."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from neurond.journal.state_files import AuditLog
from neurond.settings import Settings
from neurond.system.lifecycle import notify_systemd
from neurontools.util.errors import EXIT_USAGE, UserError

RELOADABLE = frozenset(("log_level", "health_thresholds", "actions", "tls_summary", "tls_full"))
"""The settings that a running daemon applies. Certificate files are reloaded separately, when they change."""

_START_ONLY = frozenset(("ready_fd", "exit_with_parent"))
_VALID = "configuration is valid: "
_LONGEST_SECONDS = 60.0
_MOST_BYTES = 1 << 20

_log = logging.getLogger(__name__)


class ConfigurationReloader:
    """Reloads the configuration and passes changed settings to `apply`. Belongs to the event loop's thread."""

    def __init__(self, settings: Settings, apply: Callable[[Settings, Settings], None], audit: AuditLog) -> None:
        self._settings = settings
        self._apply = apply
        self._audit = audit
        self._task: asyncio.Task[None] | None = None
        self._is_serving = self._is_requested = False

    def start(self) -> None:
        """Enables reloads, and performs a reload that was requested during the start."""
        self._is_serving = True
        if self._is_requested:
            self.request()

    def request(self) -> None:
        """Requests a reload. If the daemon is still starting or reloading, the reload follows afterwards."""
        self._is_requested = True
        if self._is_serving and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._reload_while_requested())

    async def _reload_while_requested(self) -> None:
        """Reloads, and repeats that if a request came meanwhile: the file may have changed after it was read."""
        while self._is_requested:
            self._is_requested = False
            await self._reload()

    async def _reload(self) -> None:
        notify_systemd(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            after = await read_settings(sys.argv[1:])
        except (UserError, OSError) as error:
            _log.error("the configuration is unchanged: %s", error)
        else:
            applied, left = changed_settings(self._settings, after)
            self._apply(self._settings, after)
            self._settings = replace(self._settings, **{name: getattr(after, name) for name in RELOADABLE})
            _log.info("the configuration was reloaded; changed: %s", ", ".join(applied) or "nothing")
            if left:
                _log.warning("these settings need a restart: %s", ", ".join(left))
            self._audit.record("configuration_read", time.time(), {"changed": applied, "left": left})
        finally:
            notify_systemd("READY=1")


async def read_settings(arguments: Sequence[str]) -> Settings:
    """Returns the settings, validated by a child neurond with these flags. Raises UserError if that fails."""
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
        raise UserError(f"reading it took more than {_LONGEST_SECONDS:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    output = out.decode("utf-8", "replace")
    if child.returncode or not output.startswith(_VALID):
        lines = err.decode("utf-8", "replace").strip().splitlines() or [f"exit code {child.returncode}"]
        raise UserError(lines[-1].removeprefix("neurond: "), EXIT_USAGE)
    try:
        return Settings.from_json(output.removeprefix(_VALID))
    except (TypeError, ValueError):
        raise UserError("another version of neurond was installed since the start; restart it") from None


def changed_settings(before: Settings, after: Settings) -> tuple[list[str], list[str]]:
    """Returns the names of the changed settings that a running daemon applies, and of those that need a restart."""
    names = [
        field.name
        for field in fields(Settings)
        if field.name not in _START_ONLY and getattr(before, field.name) != getattr(after, field.name)
    ]
    return [name for name in names if name in RELOADABLE], [name for name in names if name not in RELOADABLE]
