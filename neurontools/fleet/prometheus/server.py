"""HTTP client for Prometheus: one persistent connection, limits on time and size, errors in one line.

Thanos, Mimir and VictoriaMetrics have the same API, below the path in their address.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import socket
import ssl
import time
import zlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, fields
from urllib.parse import urlencode, urljoin, urlsplit

from neurontools.net.secret_files import FileProblem, read_secret
from neurontools.net.tls import client_context, load_certificate
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.formats import option_file_label, read_options
from neurontools.util.terminal import excerpt
from neurontools.util.version import __version__

MOST_BYTES = 32 * 2**20  # limit of one answer after decompression
_CONNECT_SECONDS = 5.0
_MOST_REDIRECTIONS = 3
_LONGEST_EXCERPT = 160
_CHUNK_BYTES = 2**16
_API = "/api/v1"
_PORTS = {"http": 80, "https": 443}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class PrometheusProblem(Exception):
    """Prometheus does not answer a query. The text is the reason, in one line."""


class PrometheusUnreachable(PrometheusProblem):
    """Prometheus cannot be reached, so further queries would fail too."""


@dataclass(frozen=True, slots=True)
class PrometheusSample:
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float  # NaN if not finite


@dataclass(frozen=True, slots=True)
class PrometheusAnswer:
    """The samples of an instant query, warnings about their completeness, and the number of received bytes."""

    samples: tuple[PrometheusSample, ...]
    warnings: tuple[str, ...]
    size_bytes: int


class PrometheusServer:
    """A client of a Prometheus server. Not thread-safe, except `interrupt`."""

    def __init__(self, url: str, access: PrometheusAccess) -> None:
        self._scheme, self._host, self._port, self._path = _address(url)
        self._access = access
        self._connection: http.client.HTTPConnection | None = None
        self._is_get = False
        if access.has_secrets and self._scheme == "http" and self._host not in _LOOPBACK:
            raise UserError("--prometheus: credentials are not sent over plain http; give an https address", EXIT_USAGE)

    def query(self, text: str, seconds: float) -> PrometheusAnswer:
        """Runs an instant query, for at most `seconds`. Raises PrometheusProblem if the query fails."""
        deadline = time.monotonic() + seconds
        # Without nocache, VictoriaMetrics answers as of 30 s ago, and all ages would be 30 s too low. It keeps a series
        # that ended, such as a finding with an earlier text, for `step` or the scrape interval. Others ignore both.
        fields = urlencode({"query": text, "timeout": f"{seconds:.0f}s", "nocache": "1", "step": "20s"})
        try:
            status, kind, body, size_bytes = self._fetch(fields, deadline)
        except PrometheusProblem:
            self.close()
            raise
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise PrometheusUnreachable(_error_text(error, seconds)) from None
        return _answer(status, kind, body, size_bytes)

    def close(self) -> None:
        """Closes the connection; the next query opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        """Makes a running query fail. May be called from any thread."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _fetch(self, fields: str, deadline: float) -> tuple[int, str, bytes, int]:
        """Sends a query; returns status, media type, body and size. Follows redirects within the server only."""
        path = f"{self._path}{_API}/query"
        for _ in range(_MOST_REDIRECTIONS):
            reply = self._send_request(path, fields, deadline)
            if reply.status == 405 and not self._is_get:
                self._is_get = True
                _read(reply, deadline)
                continue
            if reply.status not in (301, 302, 303, 307, 308):
                body, size_bytes = _read(reply, deadline)
                return reply.status, reply.getheader("Content-Type", ""), body, size_bytes
            path = self._redirect_path(path, reply.getheader("Location", ""))
            _read(reply, deadline)
        raise PrometheusUnreachable("its redirects form a loop; give the final address")

    def _redirect_path(self, path: str, location: str) -> str:
        """Returns the path of a redirect. Refuses other servers, which must not get the credentials."""
        with contextlib.suppress(ValueError):
            there = urlsplit(urljoin(f"{self._scheme}://{self._host}:{self._port}{path}", location))
            port = there.port or _PORTS.get(there.scheme)
            if (there.scheme, there.hostname, port) == (self._scheme, self._host, self._port):
                return there.path
        raise PrometheusUnreachable(
            f"it redirects to {excerpt(location, 80)}, which is not followed; give that address if it is meant"
        )

    def _send_request(self, path: str, fields: str, deadline: float) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": f"neuron-top/{__version__}"}
        headers |= self._access.headers()
        is_kept = self._connection is not None
        if self._connection is None:
            self._connection = self._open_connection(deadline)
        connection = self._connection
        if connection.sock is not None:
            connection.sock.settimeout(_seconds_left(deadline))
        try:
            if self._is_get:
                connection.request("GET", f"{path}?{fields}", headers=headers)
            else:
                headers["Content-Type"] = "application/x-www-form-urlencoded"
                connection.request("POST", path, fields, headers)
            return connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            if not is_kept:
                raise
            self.close()  # the server has closed the idle connection
            return self._send_request(path, fields, deadline)

    def _open_connection(self, deadline: float) -> http.client.HTTPConnection:
        seconds = min(_CONNECT_SECONDS, _seconds_left(deadline))
        if self._scheme == "http":
            connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        else:
            context = self._access.context()
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=context)
        connection.connect()
        return connection


def _address(url: str) -> tuple[str, str, int, str]:
    """Parses an address into scheme, host, port and path. Raises UserError if it is invalid or has a password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"--prometheus: {error}; give an address as http://prometheus:9090", EXIT_USAGE) from None
    if parts.username is not None or parts.password is not None:
        raise UserError(
            "--prometheus: an address with a password can be read by all users of this host;"
            " name a file with it in --prometheus-config",
            EXIT_USAGE,
        )
    if parts.scheme not in _PORTS or not host or parts.query or parts.fragment or not url.isascii() or " " in url:
        raise UserError(
            f"--prometheus {excerpt(url, 80)}: is not an address; give one as http://prometheus:9090",
            EXIT_USAGE,
        )
    return parts.scheme, host, port or _PORTS[parts.scheme], parts.path.rstrip("/").removesuffix(_API)


def _seconds_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _read(reply: http.client.HTTPResponse, deadline: float) -> tuple[bytes, int]:
    """Returns the decompressed body and the number of received bytes.

    Raises TimeoutError if the whole body has not arrived by the deadline.
    """
    coding = reply.getheader("Content-Encoding", "").lower()
    unpack = zlib.decompressobj(wbits=31) if coding == "gzip" else None
    body, size_bytes = bytearray(), 0
    while True:
        _seconds_left(deadline)
        chunk = reply.read1(_CHUNK_BYTES)
        if not chunk:
            reply.close()  # lets the next query reuse the connection
            return bytes(body), size_bytes
        size_bytes += len(chunk)
        try:
            body += unpack.decompress(chunk, MOST_BYTES + 1 - len(body)) if unpack is not None else chunk
        except zlib.error:
            raise PrometheusProblem("its answer cannot be decompressed") from None
        if len(body) > MOST_BYTES:
            raise PrometheusProblem(f"its answer is larger than {MOST_BYTES >> 20} MiB")


def _answer(status: int, kind: str, body: bytes, size_bytes: int) -> PrometheusAnswer:
    """Parses an answer. Raises PrometheusProblem if the server refused the query or the answer is malformed."""
    refusals = {401: "it wants credentials or a tenant", 403: "it refuses these credentials"}
    if status in refusals:
        raise PrometheusUnreachable(f"{refusals[status]} (status {status}); name them in --prometheus-config")
    try:
        document = json.loads(body)
        if document["status"] != "success":
            error_text = excerpt(str(document.get("error", "")), _LONGEST_EXCERPT)
            raise PrometheusProblem(f"{error_text or 'it failed without a reason'} (status {status})")
        found = document["data"]
        if found["resultType"] != "vector":
            raise ValueError("no vector")
        samples = tuple(
            [PrometheusSample(_labels(each["metric"]), _number(each["value"][1])) for each in found["result"]]
        )
        warnings = [str(line) for line in document.get("warnings") or ()]
        warnings += ["partial answer"] if document.get("isPartial") is True else []
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        word = excerpt(kind.partition(";")[0] or "nothing that is named", 40)
        hint = "; is the path right? Mimir's ends with /prometheus" if status == 404 else ""
        raise PrometheusUnreachable(
            f"it is not a Prometheus: status {status} with {word} at {_API}/query{hint}"
        ) from None
    return PrometheusAnswer(samples, tuple(excerpt(line, _LONGEST_EXCERPT) for line in warnings[:4]), size_bytes)


def _labels(found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("labels that are not text")
    return found


def _number(text: object) -> float:
    if not isinstance(text, str):
        raise ValueError("a value that is not text")
    value = float(text)
    return value if math.isfinite(value) else math.nan


def _error_text(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, socket.gaierror):
        return "its name is not known here"
    if isinstance(error, OSError) and error.strerror:
        return f"not reached: {error.strerror[:1].lower()}{error.strerror[1:]}"
    return f"its answer is not HTTP ({type(error).__name__})"


@dataclass(frozen=True, slots=True)
class PrometheusAccess:
    """Credentials for a Prometheus server. Secrets are read again for each query, TLS files for each connection."""

    tenant: str | None = None  # header X-Scope-OrgID, for Mimir and Cortex
    bearer_token_file: str | None = None
    basic_user: str | None = None
    basic_password_file: str | None = None
    tls_ca: str | None = None  # CA file for the server's certificate; None: the system's CAs
    tls_certificate: str | None = None  # client certificate, PEM
    tls_key: str | None = None  # client key, PEM; None if it is in `tls_certificate`

    @property
    def has_secrets(self) -> bool:
        return self.bearer_token_file is not None or self.basic_user is not None

    def headers(self) -> dict[str, str]:
        """Returns the HTTP headers of a query. Raises UserError if a file cannot be read."""
        found = {} if self.tenant is None else {"X-Scope-OrgID": self.tenant}
        if self.bearer_token_file is not None:
            found["Authorization"] = f"Bearer {_secret('bearer_token_file', self.bearer_token_file)}"
        elif self.basic_user is not None and self.basic_password_file is not None:
            pair = f"{self.basic_user}:{_secret('basic_password_file', self.basic_password_file)}"
            found["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        return found

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context of a connection. Raises UserError if a file cannot be read."""
        try:
            tls_context = client_context(self.tls_ca)
            if self.tls_certificate is not None:
                load_certificate(tls_context, self.tls_certificate, self.tls_key)
        except FileProblem as problem:
            raise UserError(f"tls_{problem}", EXIT_USAGE) from None
        return tls_context

    def check(self) -> None:
        """Raises UserError if a setting is invalid or a file cannot be used."""
        if self.bearer_token_file is not None and self.basic_user is not None:
            raise UserError("bearer_token_file and basic_user exclude each other; leave one out", EXIT_USAGE)
        if (self.basic_user is None) != (self.basic_password_file is None):
            raise UserError("basic_user and basic_password_file go together; give both", EXIT_USAGE)
        if self.tls_key is not None and self.tls_certificate is None:
            raise UserError("tls_key needs tls_certificate; give both", EXIT_USAGE)
        for name, text in (("tenant", self.tenant), ("basic_user", self.basic_user)):
            if text is not None and not (text.isprintable() and text.isascii() and text):
                raise UserError(f"{name}: {excerpt(text, 40)!r} is not one line of ASCII", EXIT_USAGE)
        self.headers()
        self.context()


def read_prometheus_access(path: str) -> PrometheusAccess:
    """Reads a configuration file. Raises UserError with the name of the file if it is invalid."""
    usual = {field.name: field.default for field in fields(PrometheusAccess)}
    access = PrometheusAccess(**read_options("--prometheus-config", path, usual))
    try:
        access.check()
    except UserError as error:
        raise UserError(f"{option_file_label('--prometheus-config', path)}: {error}", EXIT_USAGE) from None
    return access


def _secret(key: str, file: str) -> str:
    """Returns the only line of a file. Raises UserError if others can read the file, or it is not one line of ASCII."""
    try:
        return read_secret(key, file)
    except FileProblem as problem:
        raise UserError(str(problem), EXIT_USAGE) from None
