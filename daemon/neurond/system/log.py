"""The log of the daemon: lines on standard error that a terminal can be shown, or the journal with their priority."""

from __future__ import annotations

import logging
import os
from types import TracebackType

from neurontools.util.terminal import escape_controls

_FORMAT = "neurond: %(levelname)s: %(message)s"
_PRIORITIES = {"CRITICAL": 2, "ERROR": 3, "WARNING": 4, "INFO": 6, "DEBUG": 7}  # of syslog(3)
_STDERR = 2


def begin(level: str) -> None:
    """From here on, what is logged at this level (error, warning, info, debug) or above goes to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JournalFormatter("%(message)s") if is_journal() else VisibleFormatter(_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def change(level: str) -> None:
    """From here on this level holds."""
    logging.getLogger().setLevel(level.upper())


def is_journal() -> bool:
    """Whether standard error goes to systemd's journal (systemd.exec(5), JOURNAL_STREAM)."""
    try:
        status = os.fstat(_STDERR)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class VisibleFormatter(logging.Formatter):
    """A record is one line, whatever commands, paths and replies are in its text; a traceback follows in its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line."""
        return escape_controls(super().formatMessage(record))

    def formatException(  # noqa: N802
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """The lines of the traceback."""
        return "\n".join(map(escape_controls, super().formatException(ei).split("\n")))


class JournalFormatter(VisibleFormatter):
    """The same with a priority before each line (sd-daemon(3)); the journal knows whose lines they are."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines."""
        priority = f"<{_PRIORITIES.get(record.levelname, 6)}>"
        return "\n".join(priority + line for line in super().format(record).split("\n"))
