"""The hosts of a file as Prometheus discovers targets from: JSON, `[{"targets": ["host:port"], "labels": {…}}]`.

A host is called by its label `node` where it alone has it, else as its target without the port, and is reached by SSH
under that, or where the label `__neuron_place__` says. The other labels are what hosts are grouped by.
"""

from __future__ import annotations

import json
from typing import Any

from neurontools.fleet.hosts import LONGEST_LABEL, MOST_LABELS, Collected, Hosts, file_text
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt

PLACE_LABEL = "__neuron_place__"


def read_file_sd(path: str) -> Hosts:
    """The hosts of a file; UserError when it can't be read or is not JSON of this form."""
    at = f"--file-sd {excerpt(path, 200)}"
    text = file_text("--file-sd", path, "targets, as Prometheus reads them")
    try:
        groups = json.loads(text)
    except (ValueError, RecursionError) as error:
        yaml = path.endswith((".yml", ".yaml"))
        cause = "is YAML, which is not read" if yaml else f"is no JSON: {excerpt(str(error), 100)}"
        raise UserError(f"{at}: {cause}; Prometheus reads the same as JSON", EXIT_USAGE) from None
    if not isinstance(groups, list):
        raise UserError(f'{at}: is no list; write [{{"targets": ["trn-1:8000"]}}]', EXIT_USAGE)
    collected = Collected()
    for number, group in enumerate(groups, 1):
        where = f"{excerpt(path, 200)}: group {number}"
        try:
            targets, labels = _group(group)
        except ValueError as error:
            collected.trouble(where, str(error))
            continue
        for target in targets:
            host = target.rpartition(":")[0].strip("[]") or target
            name = labels.get("node", host) if len(targets) == 1 else host
            reached = labels.get(PLACE_LABEL, f"ssh:{host}")
            told = " ".join(f"{key}={value}" for key, value in _shown(labels))
            collected.add(f"{name} {reached} {told}", where)
    return collected.hosts()


def _group(group: Any) -> tuple[list[str], dict[str, str]]:
    """The targets of a group and its labels; ValueError for what Prometheus would not take either."""
    if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
        raise ValueError("has no list of targets")
    targets, labels = group["targets"], group.get("labels") or {}
    if not isinstance(labels, dict) or not all(isinstance(each, str) for each in (*targets, *labels.values())):
        raise ValueError("has a target or a label that is no text")
    return targets, labels


def _shown(labels: dict[str, str]) -> list[tuple[str, str]]:
    """Those that tell hosts apart, as a hostfile has them; a space in one is an underscore."""
    own = [(name, "_".join(value.split())[:LONGEST_LABEL]) for name, value in labels.items()]
    return [(name, value) for name, value in own if not name.startswith("__") and name != "node"][:MOST_LABELS]
