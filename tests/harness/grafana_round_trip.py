"""Reads a dashboard with Grafana's own models and prints a line for whatever they don't know, or have otherwise.

Run by the interpreter that has grafana-foundation-sdk, with the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def differences(ours: object, theirs: object, place: str = "") -> Iterator[str]:
    """What of ours is not in theirs; they may have more."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key in theirs:
                yield from differences(value, theirs[key], f"{place}/{key}")
            else:
                yield f"{place}/{key}"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{place}/{index}")
    elif ours != theirs:
        yield place


if __name__ == "__main__":
    register_default_plugins()
    dashboard = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    print("\n".join(differences(dashboard, read)))
