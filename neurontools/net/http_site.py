"""HTTP sites: requests and responses, gzip compression, access control, and routing of requests to pages.

Access depends on a bearer token, a client certificate and the Host header.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import socket
import struct
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neurontools.net.tls import FileProblem, Role, ServerTls, Subjects, file_problems, identities, subject_names
from neurontools.util.errors import EXIT_USAGE, UserError

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request. `headers` has lower-case names; values of repeated headers are joined by commas."""

    method: str
    path: str  # as sent, not decoded
    query: str
    authority: str  # host and port from the Host header, "" without this header
    headers: Mapping[str, str]
    role: Role | None = Role.FULL  # role of the client; None if its certificate gives no access
    body: bytes = b""  # request body of a short POST request; the server does not read longer bodies

    def header(self, name: str) -> str:
        """Returns the value of a header by its lower-case name; "" if the header is missing."""
        return self.headers.get(name, "")


def request_of(
    method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], role: Role | None = Role.FULL
) -> HttpRequest:
    """Builds a request from the values that h11 has parsed."""
    named: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        named[name] = f"{named[name]}, {value}" if name in named else value
    rest, authority = target.decode("latin-1"), named.get("host", "")
    scheme, separator, behind = rest.partition("://")
    # An absolute URL as the target, as for proxies, overrides Host (RFC 9112, section 3.2.2).
    if separator and scheme.lower() in ("http", "https"):
        authority, slash, path = behind.partition("/")
        rest = slash + path or "/"
    path, _, query = rest.partition("?")
    return HttpRequest(method.decode("latin-1"), path, query, authority, named, role)


PLAIN_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response. If `body` is a document, it is compressed for clients that accept gzip.

    If `body` is a generator, its pieces are sent as they come, and the connection is closed after the last. The
    generator is closed when the client disconnects.
    """

    body: bytes | CompressibleDocument | AsyncGenerator[bytes, None]
    content_type: str = PLAIN_TEXT
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    close: bool = False  # whether the server closes the connection after this response


def refusal(status: int, text: str, *headers: tuple[str, str], close: bool = True) -> HttpResponse:
    """Returns an error response whose body is one line of text."""
    return HttpResponse(f"{text}\n".encode(), PLAIN_TEXT, status, headers, close)


_LEVEL = 1  # zlib level: makes metrics 20 times smaller; higher levels are slower and save little
_RAW = -15  # zlib's wbits: the largest window, raw deflate without header and trailer
_SMALLEST_BYTES = 1024  # least size of a compressed body; a smaller body fits in one packet uncompressed
# gzip header (RFC 1952): magic, deflate, no flags, no time, fastest compression, unknown system.
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
_LAST_BLOCK = b"\x03\x00"  # an empty deflate block, marked as the last block
_GZIP_END = struct.Struct("<II")  # gzip trailer: CRC-32 and size of the content


class CompressedPart:
    """A part of compressible documents. It is compressed only once, even if several documents contain it."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @cached_property
    def deflated(self) -> bytes:
        """The part as deflate blocks. They have no references to other parts, so that blocks can be joined."""
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
        return compressor.compress(self.content) + compressor.flush(zlib.Z_FULL_FLUSH)


class CompressibleDocument:
    """A response body for many clients. It consists of parts that are compressed separately."""

    def __init__(self, parts: Iterable[CompressedPart]) -> None:
        self._parts = tuple(parts)
        self.content = b"".join([part.content for part in self._parts])

    @property
    def compressible(self) -> bool:
        return len(self.content) >= _SMALLEST_BYTES

    @cached_property
    def gzipped(self) -> bytes:
        """The content in gzip format, built at the first access."""
        end = _GZIP_END.pack(zlib.crc32(self.content), len(self.content) % 2**32)
        return b"".join([_GZIP_HEAD, *[part.deflated for part in self._parts], _LAST_BLOCK, end])


def accepts_gzip(accept_encoding: str) -> bool:
    """Returns whether an Accept-Encoding header accepts gzip (RFC 9110, section 12.5.3)."""
    accepted: dict[str, bool] = {}
    for part in accept_encoding.split(","):
        coding, *parameters = (piece.strip().lower() for piece in part.split(";"))
        accepted[coding] = not any(_is_refusal(parameter) for parameter in parameters)
    return accepted.get("gzip", accepted.get("*", False))


def _is_refusal(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    try:
        return name.strip() == "q" and float(value) <= 0
    except ValueError:
        return False


class HttpAccess:
    """Decides which clients may see which pages. Raises UserError if the token file is invalid.

    `tls` is None for plain HTTP. With `subjects`, a client certificate must have one of these names. `hosts` checks the
    Host header; None accepts every host. In messages, `message_prefix` precedes the name of the setting.
    """

    def __init__(
        self,
        tls: ServerTls | None = None,
        *,
        bearer_token_file: str | None = None,
        message_prefix: str = "",
        subjects: Subjects | None = None,
        hosts: HostCheck | None = None,
    ) -> None:
        self._tls = tls
        self._token_file = bearer_token_file
        self._message_prefix = message_prefix
        self._is_named = subjects is not None
        self._subjects = subjects or Subjects()
        self._hosts = hosts
        self._token: bytes | None = None
        self._read_at = identities(bearer_token_file)
        try:
            if bearer_token_file is not None:
                self._token = read_token(bearer_token_file)
        except FileProblem as problem:
            raise UserError(f"{message_prefix}{problem}", EXIT_USAGE) from None

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context for the next handshake; None for plain HTTP."""
        return None if self._tls is None else self._tls.context

    def role(self, certificate: Mapping[str, Any] | None) -> Role | None:
        """Returns the role of a client with this certificate; None if the client has no access.

        If no subject names are configured, every client has the role FULL.
        """
        if not self._subjects:
            return Role.FULL
        roles = self._subjects.widest_role(subject_names(certificate or {}))
        return None if roles is None else roles[1]

    def allow(self, subjects: Subjects) -> None:
        """Replaces the allowed subject names for new connections. Does nothing if the constructor got no `subjects`."""
        if self._is_named:
            self._subjects = subjects

    def admits_host(self, authority: str) -> bool:
        return self._hosts is None or self._hosts.admits(authority)

    def admits(self, authorization: str) -> bool:
        """Returns whether this Authorization header has the bearer token. Returns true if no token is needed."""
        if self._token is None:
            return True
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._token)

    @property
    def requires_authentication(self) -> bool:
        return self._token is not None or (self.context is not None and bool(self.context.verify_mode))

    @property
    def requires_token(self) -> bool:
        return self._token is not None

    def signature(self, text: str) -> str:
        """Returns the HMAC of a text, with the current token as the key; "" without a token."""
        return "" if self._token is None else hmac.new(self._token, text.encode(), "sha256").hexdigest()

    def reload(self) -> None:
        """Reads changed certificate and token files again. If a file is invalid, the old contents stay in use."""
        if self._tls is not None:
            self._tls.reload()
        changed_at = identities(self._token_file)
        if self._token_file is None or changed_at == self._read_at:
            return
        self._read_at = changed_at
        try:
            self._token = read_token(self._token_file)
            _log.info("the token was read again")
        except FileProblem as problem:
            _log.warning("%s%s; the old contents stay in use", self._message_prefix, problem)


class HostCheck:
    """Checks the Host header. Accepts IP addresses, localhost, this host's names, and the names in `allowed`."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        own = socket.gethostname()
        self._names = {name.lower().rstrip(".") for name in ("localhost", own, own.partition(".")[0], *allowed) if name}

    def admits(self, authority: str) -> bool:
        """Returns whether the Host header, with or without a port, has an accepted name."""
        authority = authority.strip()
        host = authority[1:].partition("]")[0] if authority.startswith("[") else authority.partition(":")[0]
        host = host.lower().rstrip(".")
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host in self._names or host.endswith(".localhost")
        return True


def is_loopback(host: str | None) -> bool:
    """Returns whether only this host can reach a listening address. None means all addresses."""
    if host is None:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def require_auth_off_loopback(host: str | None, access: HttpAccess, option: str, certificate: str, token: str) -> None:
    """Raises UserError if other hosts could reach an address without TLS or without authentication.

    `option`, `certificate` and `token` are names of settings for the message.
    """
    if is_loopback(host):
        return
    problem = ""
    if access.context is None:
        problem = f"there is no TLS; listen on 127.0.0.1, or set {certificate}"
    elif not access.requires_authentication:
        problem = f"everybody would have access; listen on 127.0.0.1, or set {token}"
    if problem:
        raise UserError(f"{option}: other hosts can reach this address, and {problem}", EXIT_USAGE)


_LONGEST_TOKEN_BYTES = 4096


def read_token(file: str) -> bytes:
    with file_problems("bearer_token_file", file), Path(file).open("rb") as opened:
        content = opened.read(_LONGEST_TOKEN_BYTES + 1)
    token = content.strip()
    if not token or len(content) > _LONGEST_TOKEN_BYTES or not token.isascii():
        raise FileProblem(f"bearer_token_file: {file}: no token; write one line of ASCII")
    return token


Handler = Callable[[HttpRequest], HttpResponse]
"""Makes the response. It must be quick and read only the request, because it blocks the event loop."""

_METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class HttpPage:
    """An HTTP page. An `is_open` page is for everybody; other pages need an authenticated client with the `role`."""

    handler: Handler
    is_open: bool = False
    # Least role that may read this page. If it is SUMMARY, the handler must hide commands and users from these clients.
    role: Role = Role.FULL
    methods: tuple[str, ...] = _METHODS


class Site:
    """Routes requests to pages by path. A page whose path ends in a slash also answers all paths below its own.

    Each page allows only its `methods`.
    """

    def __init__(self, pages: Mapping[str, HttpPage], otherwise: HttpPage, access: HttpAccess) -> None:
        self.access = access
        self._pages = pages
        self._otherwise = otherwise

    def answer(self, request: HttpRequest) -> HttpResponse:
        """Returns the response to a request. Logs an exception in a page and answers 500."""
        top_directory = f"/{request.path[1:].partition('/')[0]}/"
        page = self._pages.get(request.path) or self._pages.get(top_directory, self._otherwise)
        if not page.is_open:
            if not self.access.admits_host(request.authority):
                return refusal(
                    421, f"not for {request.authority[:100]!a}; ask for this host by its address or its name"
                )
            if not self.access.admits(request.header("authorization")):
                return refusal(401, "a bearer token is needed", ("WWW-Authenticate", "Bearer"))
            if request.role is None:
                return refusal(403, "no name in your certificate is allowed here")
            if request.role is not Role.FULL and page.role is Role.FULL:
                return refusal(403, f"this page is for the role {page.role}, and your certificate has {request.role}")
        if request.method not in page.methods:
            return refusal(405, f"only {page.methods[0]}", ("Allow", ", ".join(page.methods)))
        try:
            return page.handler(request)
        except Exception:
            # An exception in a page must not end the process, and the client must not get an empty page.
            _log.exception("%s could not be made", request.path)
            return refusal(500, "this page could not be made; the log says why")
