"""Derives the roles of clients from the subject names in their certificates. Does not import ssl.

A subject name is a URI (such as a SPIFFE ID) or a DNS name among the subject alternative names of the certificate (RFC
5280, section 4.2.1.6). Names are compared as a whole. The common name is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

_DNS_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[!-~]+")
_LONGEST_NAME = 2048  # bytes, the length limit of a SPIFFE ID
_LONGEST_DNS_NAME = 253


class Role(StrEnum):
    """The role of a client, which decides how much the client may see."""

    SUMMARY = "summary"  # may see counts, findings and jobs, but no commands and no users
    FULL = "full"


def checked_name(text: str) -> str:
    """Returns a URI unchanged and a DNS name in lower case. Raises ValueError for any other name."""
    if "://" in text:
        if not _URI.fullmatch(text) or len(text) > _LONGEST_NAME:
            raise ValueError(f"{text[:60]!r} is not a URI; write one such as spiffe://example.org/viewer")
        return text
    if not _DNS_NAME.fullmatch(text) or len(text) > _LONGEST_DNS_NAME:
        raise ValueError(
            f"{text[:60]!r} is not a DNS name; write one such as viewer.example.org, or a URI such as "
            "spiffe://example.org/viewer"
        )
    return text.lower()


def subject_names(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the URI and DNS names of a verified certificate from `SSLSocket.getpeercert`."""
    found = certificate.get("subjectAltName", ())
    return tuple(value if kind == "URI" else value.lower() for kind, value in found if kind in ("URI", "DNS"))


class Subjects:
    """Maps subject names to roles. An empty mapping is false; then all clients have the same role."""

    def __init__(self, summary: Iterable[str] = (), full: Iterable[str] = ()) -> None:
        self._roles = dict.fromkeys(summary, Role.SUMMARY) | dict.fromkeys(full, Role.FULL)

    def __bool__(self) -> bool:
        return bool(self._roles)

    def widest_role(self, names: Iterable[str]) -> tuple[str, Role] | None:
        """Returns the name that has the widest role, and this role. Returns None if no name has a role."""
        found = [(name, self._roles[name]) for name in names if name in self._roles]
        return next((each for each in found if each[1] is Role.FULL), found[0] if found else None)
