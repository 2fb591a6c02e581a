"""HTTP sites: requests and responses, gzip compression, access control, and routing of requests to pages.

Access depends on a bearer token, a client certificate and the Host header.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import struct
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from neurontools.net.bearer_token import BearerToken, TokenCheck
from neurontools.net.tls import Role, ServerTls, Subjects, subject_names
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
    client: str = ""  # key of the client for limits, made from its address
    body: bytes = b""  # request body of a short POST request; the server does not read longer bodies

    def header(self, name: str) -> str:
        """Returns the value of a header by its lower-case name; "" if the header is missing."""
        return self.headers.get(name, "")


def request_of(
    method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], role: Role | None = Role.FULL, client: str = ""
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
    return HttpRequest(method.decode("latin-1"), path, query, authority, named, role, client)


PLAIN_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response. If `body` is a document, it is compressed for clients that accept gzip.

    If `body` is a generator, its pieces are sent as they come, and the connection is closed after the last. The
    generator is closed when the client disconnects. If `body` is an Awaitable, the server sends the response that it
    returns, with the headers of both. It must not raise.
    """

    body: bytes | CompressibleDocument | AsyncGenerator[bytes, None] | Awaitable[HttpResponse]
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
    ) -> None:
        self._tls = tls
        self._is_named = subjects is not None
        self._subjects = subjects or Subjects()
        self._token = None
        if bearer_token_file is not None:
            self._token = BearerToken(bearer_token_file, f"{message_prefix}bearer_token_file")

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

    def check_token(self, request: HttpRequest, given: str | None = None) -> TokenCheck:
        """Checks the token of a request: `given`, by default that of the Authorization header. Counts wrong tokens."""
        if self._token is None:
            return TokenCheck.ADMITTED
        if given is None:
            scheme, _, text = request.header("authorization").partition(" ")
            given = text.strip() if scheme.lower() == "bearer" else None
        return self._token.check(given, request.client)

    @property
    def requires_authentication(self) -> bool:
        return self._token is not None or (self.context is not None and bool(self.context.verify_mode))

    @property
    def requires_token(self) -> bool:
        return self._token is not None

    def signature(self, text: str) -> str:
        """Returns the HMAC of a text, with the current token as the key; "" without a token."""
        return "" if self._token is None else self._token.signature(text)

    def reload(self) -> bool:
        """Reads changed certificate and token files again. If a file is invalid, the old contents stay in use.

        Returns whether other client certificates are accepted now, so that all clients have to reconnect.
        """
        if self._token is not None:
            self._token.reload()
        if self._tls is None:
            return False
        authorities = self._tls.authorities
        return self._tls.reload() and self._tls.authorities != authorities


def token_refusal(check: TokenCheck) -> HttpResponse:
    """Returns the response to a client whose token was not admitted."""
    if check is TokenCheck.TOO_MANY:
        return refusal(
            429, "too many wrong tokens came from your address; try again in a minute", ("Retry-After", "60")
        )
    return refusal(401, "a bearer token is needed", ("WWW-Authenticate", "Bearer"))


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


Handler = Callable[[HttpRequest], HttpResponse]
"""Makes the response. It must be quick and read only the request, because it blocks the event loop.

A slow page returns a response whose body is an Awaitable.
"""

_METHODS = ("GET", "HEAD")
_PORTS = {"http": "80", "https": "443"}
_SECURITY_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


class RequestGuard:
    """Rejects cross-site requests, and requests for other host names. `hosts` None accepts every host name.

    Other host names are those that a foreign page resolves to this host, which is DNS rebinding.
    """

    def __init__(self, hosts: HostCheck | None = None) -> None:
        self._hosts = hosts

    def refused(self, request: HttpRequest) -> HttpResponse | None:
        """Returns the error response if the request is not allowed, else None."""
        if self._hosts is not None and not (request.authority and self._hosts.admits(request.authority)):
            return refusal(
                421,
                f"not for {request.authority[:100]!a}; ask for this host by its address or its name, or add the name "
                "to the setting hosts",
            )
        if not _is_same_origin_request(request):
            return refusal(403, "asked for by a page of somebody else")
        return None


def _is_same_origin_request(request: HttpRequest) -> bool:
    """Returns whether a request comes from our own page, from direct navigation, or from a non-browser program."""
    origin, site = request.header("origin"), request.header("sec-fetch-site") or "none"
    # Under our "Referrer-Policy: no-referrer", browsers send our own forms with the origin "null".
    is_own_form = origin == "null" and site == "same-origin"
    if origin and not is_own_form and not _origin_matches(origin, request.authority):
        return False
    if site in ("same-origin", "none"):
        return True
    is_visit = request.header("sec-fetch-mode") == "navigate" and request.header("sec-fetch-dest") == "document"
    return is_visit and request.method == "GET"


def _origin_matches(origin: str, authority: str) -> bool:
    """Returns whether an Origin header names this host and port. Ignores the scheme, which a proxy may change."""
    scheme, separator, place = origin.partition("://")
    usual = _PORTS.get(scheme)
    if not separator or usual is None:
        return False
    return _with_port(place, usual) == _with_port(authority, usual)


def _with_port(authority: str, usual: str) -> str:
    host, colon, port = authority.lower().rpartition(":")
    return f"{authority.lower()}:{usual}" if not colon or port.endswith("]") else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class HttpPage:
    """An HTTP page. An `is_open` page is for everybody; other pages need an authenticated client with the `role`."""

    handler: Handler
    is_open: bool = False
    is_probe: bool = False  # whether the page is also for requests that the site's guard refuses; it must show nothing
    # Least role that may read this page. If it is SUMMARY, the handler must hide commands and users from these clients.
    role: Role = Role.FULL
    methods: tuple[str, ...] = _METHODS


class Site:
    """Routes requests to pages by path. A page whose path ends in a slash also answers all paths below its own.

    Each page allows only its `methods`. `guard` decides first, for all pages except probes.
    """

    def __init__(
        self, pages: Mapping[str, HttpPage], otherwise: HttpPage, access: HttpAccess, guard: RequestGuard | None = None
    ) -> None:
        self.access = access
        self._guard = guard or RequestGuard()
        self._pages = pages
        self._otherwise = otherwise

    def answer(self, request: HttpRequest) -> HttpResponse:
        """Returns the response to a request, with headers that protect it in browsers.

        Logs an exception in a page and answers 500.
        """
        response = self._answer(request)
        return replace(response, headers=(*_SECURITY_HEADERS, *response.headers))

    def _answer(self, request: HttpRequest) -> HttpResponse:
        top_directory = f"/{request.path[1:].partition('/')[0]}/"
        page = self._pages.get(request.path) or self._pages.get(top_directory, self._otherwise)
        refused = None if page.is_probe else self._guard.refused(request)
        if refused is not None:
            return refused
        if not page.is_open:
            check = self.access.check_token(request)
            if check is not TokenCheck.ADMITTED:
                return token_refusal(check)
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
