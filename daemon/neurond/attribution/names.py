"""Names as Kubernetes has them."""

from __future__ import annotations

import re

MAX_NAME_CHARACTERS = 253  # of a pod
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def name_of_kubernetes(text: str | None) -> str | None:
    """The text where it is a name as pods, namespaces and containers have them; None for anything else."""
    return text if text and len(text) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(text) else None
