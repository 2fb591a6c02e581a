"""A request, as pages see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neurontools.net.tls.subjects import Role


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for. `headers` are by lower-case name; those that were sent twice are joined by commas."""

    method: str
    path: str  # as it was sent: not decoded
    query: str
    authority: str  # host and port that the client means, "" when an old one doesn't say
    headers: Mapping[str, str]
    role: Role | None = Role.FULL  # how much the client may see; None: its certificate is for nothing here
    body: bytes = b""  # of a POST, where it is short; else the connection ends behind the response

    def header(self, name: str) -> str:
        """A header by its lower-case name; "" when there is none."""
        return self.headers.get(name, "")


def request_of(
    method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], role: Role | None = Role.FULL
) -> Request:
    """The request of what a parser has read, the names of headers in lower case."""
    named: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        named[name] = f"{named[name]}, {value}" if name in named else value
    rest, authority = target.decode("latin-1"), named.get("host", "")
    scheme, separator, behind = rest.partition("://")
    if separator and scheme.lower() in ("http", "https"):  # the form for proxies, in which Host doesn't count
        authority, slash, path = behind.partition("/")
        rest = slash + path or "/"
    path, _, query = rest.partition("?")
    return Request(method.decode("latin-1"), path, query, authority, named, role)
