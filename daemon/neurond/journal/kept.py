"""What a daemon keeps below its state directory, where it has one and may write there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from neurond.journal.audit import NAME
from neurond.journal.line_file import LineFile
from neurontools.util.directory import NotTrusted

_log = logging.getLogger(__name__)
T = TypeVar("T")


def audit_file(path: str, group: int | None) -> LineFile:
    """The file of the audit, below this directory, for the members of a group too; what it has is not read."""
    file = LineFile(path, NAME, "the audit", group)
    file.content = b""
    return file


def kept(directory: str | None, group: int | None, what: str, opened: Callable[[str, int | None], T]) -> T | None:
    """What `opened` makes of the directory; None where nothing is kept, or can't be, which is told."""
    if directory is None:
        return None
    try:
        return opened(directory, group)
    except BlockingIOError:
        _log.warning("%s: another daemon keeps %s there; this one keeps it in memory", directory, what)
    except OSError as error:
        _log.warning(
            "%s: %s is kept in memory alone: %s%s",
            directory,
            what,
            f"{error.filename} " if isinstance(error, NotTrusted) else "",
            error.strerror,
        )
    return None
