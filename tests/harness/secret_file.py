"""Files with secrets, which the tools accept only if no other user can read them."""

from __future__ import annotations

from pathlib import Path

TOKEN = "0123456789abcdef-correct-horse-battery"
"""A token that is long enough for a server."""


def write_secret(path: Path, text: str = TOKEN) -> Path:
    """Writes a line to a file that only its owner may read, and returns the path."""
    path.touch(0o600)
    path.chmod(0o600)
    path.write_text(f"{text}\n", "utf-8")
    return path
