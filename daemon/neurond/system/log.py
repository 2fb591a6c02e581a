"""The log of the daemon: lines on standard error that a terminal can be shown."""

from __future__ import annotations

import logging
from types import TracebackType

from neurontools.text.terminal import visible

_FORMAT = "neurond: %(levelname)s: %(message)s"


def begin(level: str) -> None:
    """From here on, what is logged at this level (error, warning, info, debug) or above goes to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter(_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class VisibleFormatter(logging.Formatter):
    """A record is one line, whatever commands, paths and replies are in its text; a traceback follows in its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line."""
        return visible(super().formatMessage(record))

    def formatException(  # noqa: N802
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """The lines of the traceback."""
        return "\n".join(map(visible, super().formatException(ei).split("\n")))
