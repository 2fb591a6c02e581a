"""Reads dashboards with Grafana's own models and prints what these don't know, or have otherwise: a list for each.

Run by the interpreter that has grafana-foundation-sdk, with the files.
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


def unknown(file: str) -> list[str]:
    """The places in a file."""
    dashboard = json.loads(Path(file).read_text("utf-8"))
    return list(differences(dashboard, json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))))


if __name__ == "__main__":
    register_default_plugins()
    print(json.dumps([unknown(file) for file in sys.argv[1:]]))
