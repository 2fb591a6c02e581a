"""Files of JSON lines that a process may be writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def complete_lines(path: Path) -> list[Any]:
    """Returns the documents of a file, without one that is still being written."""
    return [json.loads(line) for line in path.read_text("utf-8").rpartition("\n")[0].splitlines()]


def audit_entries(state_directory: Path, event: str) -> list[dict[str, Any]]:
    """Returns the entries of a daemon's audit log about this event."""
    return [entry for entry in complete_lines(state_directory / "audit.jsonl") if entry["event"] == event]
