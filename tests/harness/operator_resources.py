"""Checks resources of the Prometheus operator, a list in JSON on standard input; prints "" or an error for each.

Run by the interpreter that has cloudcoil's models, which are made of the operator's resource definitions. They pass
over fields that a definition does not have, so what a model has kept is compared with what it was given.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from cloudcoil.models.prometheus_operator import v1


def error(resource: dict[str, Any]) -> str:
    """What is not as the operator defines it."""
    try:
        model = getattr(v1, resource["kind"]).model_validate(resource)
    except ValueError as refusal:
        return str(refusal)
    accepted = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return "" if accepted == resource else f"given {resource}\nkept {accepted}"


if __name__ == "__main__":
    print(json.dumps([error(resource) for resource in json.load(sys.stdin)]))
