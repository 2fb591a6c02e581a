"""Checks resources of the Prometheus operator, on standard input as JSON; prints those that its models take whole.

Run by the interpreter that has cloudcoil's models, which are made of the operator's resource definitions. They pass
over fields that a definition does not have, so what a model has kept is compared with what it was given.
"""

from __future__ import annotations

import json
import sys

from cloudcoil.models.prometheus_operator import v1


def main() -> int:
    """Name the kinds that are as the operator defines them; the first that is not ends it with 1."""
    for resource in json.load(sys.stdin):
        model = getattr(v1, resource["kind"]).model_validate(resource)
        kept = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if kept != resource:
            sys.stderr.write(f"{resource['kind']}: given {resource}\nkept {kept}\n")
            return 1
        sys.stdout.write(f"{resource['kind']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
