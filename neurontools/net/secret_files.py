"""Files with secrets: keys, tokens, passwords and URLs. Files that other users can read are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_LONGEST_SECRET_BYTES = 4096


class FileProblem(Exception):
    """A file cannot be used. The message names the file's setting, the file, the cause and the next step."""


def require_private(status: os.stat_result, setting: str, file: str, content: str) -> None:
    """Raises FileProblem if users other than the owner and the group of a regular file have access to it.

    `content` is what the file holds, for the message.
    """
    if stat.S_ISREG(status.st_mode) and status.st_mode & 0o007:
        raise FileProblem(
            f"{setting}: {file}: holds {content} and has the mode {stat.S_IMODE(status.st_mode):04o}; "
            "take it away from others (chmod o=, or defaultMode: 0440 of a Kubernetes secret)"
        )


def read_secret(setting: str, file: str, content: str = "a secret") -> str:
    """Returns the only line of a file. Raises FileProblem if others can access it, or it is not one line of ASCII.

    Symbolic links are followed, because Kubernetes mounts secrets as links.
    """
    try:
        with Path(file).open("rb") as opened:
            status = os.fstat(opened.fileno())
            data = opened.read(_LONGEST_SECRET_BYTES + 1)
    except OSError as error:
        raise FileProblem(f"{setting}: {file}: {error.strerror}; give a readable file") from None
    require_private(status, setting, file, content)
    line = data.strip()
    if not line or len(data) > _LONGEST_SECRET_BYTES or not line.isascii() or not line.decode().isprintable():
        raise FileProblem(f"{setting}: {file}: does not hold {content}; write one line of ASCII")
    return line.decode()
