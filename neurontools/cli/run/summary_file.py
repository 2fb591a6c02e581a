"""The file of --summary-json."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from neurontools.cli.line.frame import write_text
from neurontools.util.errors import UserError
from neurontools.util.formats import json_text

_STDOUT = "-"


def check(target: str) -> None:
    """UserError, before the script runs, where its summary could not be written after it. Makes and changes nothing."""
    if target == _STDOUT:
        return
    path = Path(target)
    if path.is_dir():
        raise _failure(target, errno.EISDIR)
    if not path.parent.is_dir():
        raise _failure(target, errno.ENOENT)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise _failure(target, errno.EACCES)


def write(target: str, document: dict[str, Any]) -> None:
    """Writes it; UserError where that fails."""
    text = json_text(document, indent=2) + "\n"
    if target == _STDOUT:
        write_text(text)
        return
    try:
        Path(target).write_text(text)
    except OSError as error:
        raise _failure(target, error.errno) from None


def _failure(target: str, number: int | None) -> UserError:
    return UserError(f"--summary-json {target}: {os.strerror(number or errno.EIO)}; give a file that can be written")
