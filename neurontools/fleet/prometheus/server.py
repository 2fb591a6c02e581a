"""A Prometheus as it is asked: one connection that is kept, limits on time and size, a line for what goes wrong.

Thanos, Mimir and VictoriaMetrics are asked the same way, below the path that their address has.
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
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urljoin, urlsplit

from neurontools.fleet.prometheus.access import Access
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt
from neurontools.util.version import __version__

MOST_BYTES = 32 * 2**20  # of one answer, unpacked
_CONNECT_SECONDS = 5.0
_MOST_REDIRECTIONS = 3
_LONGEST_TOLD = 160
_CHUNK_BYTES = 2**16
_API = "/api/v1"
_PORTS = {"http": 80, "https": 443}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class PrometheusProblem(Exception):
    """It does not answer what was asked; the text says why, in a line."""


class Unasked(PrometheusProblem):
    """It could not be asked at all: what is asked next would fare no better."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float  # may be none of the numbers: NaN


@dataclass(frozen=True, slots=True)
class Answer:
    """The samples of an instant query, what was told of their completeness, and its size as it came."""

    samples: tuple[Sample, ...]
    warnings: tuple[str, ...]
    size_bytes: int


class PrometheusServer:
    """For one thread, but `interrupt`, which any may call."""

    def __init__(self, url: str, access: Access) -> None:
        self._scheme, self._host, self._port, self._path = _address(url)
        self._access = access
        self._connection: http.client.HTTPConnection | None = None
        self._is_get = False
        if access.has_secrets and self._scheme == "http" and self._host not in _LOOPBACK:
            raise UserError("--prometheus: credentials are not sent over plain http; give an https address", EXIT_USAGE)

    def query(self, text: str, seconds: float) -> Answer:
        """The answer to an instant query within so many seconds; PrometheusProblem."""
        deadline = time.monotonic() + seconds
        fields = urlencode({"query": text, "timeout": f"{seconds:.0f}s"})
        try:
            status, kind, body, size_bytes = self._fetched(fields, deadline)
        except PrometheusProblem:
            self.close()
            raise
        except TimeoutError:
            self.close()
            raise Unasked(f"no answer within {seconds:g} s") from None
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise Unasked(f"its certificate is not trusted: {error.verify_message}") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unasked(_told(error)) from None
        return _answer(status, kind, body, size_bytes)

    def close(self) -> None:
        """End the connection; the next query makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        """Have a query that is under way in another thread fail."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _fetched(self, fields: str, deadline: float) -> tuple[int, str, bytes, int]:
        """Status, media type and body; redirections within the server are followed, and no others."""
        path = f"{self._path}{_API}/query"
        for _ in range(_MOST_REDIRECTIONS):
            reply = self._asked(path, fields, deadline)
            if reply.status == 405 and not self._is_get:
                self._is_get = True
                _read(reply, deadline)
                continue
            if reply.status not in (301, 302, 303, 307, 308):
                body, size_bytes = _read(reply, deadline)
                return reply.status, reply.getheader("Content-Type", ""), body, size_bytes
            path = self._redirected(path, reply.getheader("Location", ""))
            _read(reply, deadline)
        raise Unasked("it redirects in a circle; give the address that answers")

    def _redirected(self, path: str, location: str) -> str:
        """The path to ask instead; credentials go to no other server."""
        with contextlib.suppress(ValueError):
            there = urlsplit(urljoin(f"{self._scheme}://{self._host}:{self._port}{path}", location))
            port = there.port or _PORTS.get(there.scheme)
            if (there.scheme, there.hostname, port) == (self._scheme, self._host, self._port):
                return there.path
        raise Unasked(
            f"it redirects to {excerpt(location, 80)}, which is not followed; give that address if it is meant"
        )

    def _asked(self, path: str, fields: str, deadline: float) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": f"neuron-top/{__version__}"}
        headers |= self._access.headers()
        is_kept = self._connection is not None
        if self._connection is None:
            self._connection = self._connected(deadline)
        connection = self._connection
        if connection.sock is not None:
            connection.sock.settimeout(_left(deadline))
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
            self.close()  # it was closed there while nothing was asked
            return self._asked(path, fields, deadline)

    def _connected(self, deadline: float) -> http.client.HTTPConnection:
        seconds = min(_CONNECT_SECONDS, _left(deadline))
        if self._scheme == "http":
            made = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        else:
            made = http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._access.context())
        made.connect()
        return made


def _address(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and path; UserError."""
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
            f"--prometheus {excerpt(url, 80)}: is no address; give one as http://prometheus:9090",
            EXIT_USAGE,
        )
    return parts.scheme, host, port or _PORTS[parts.scheme], parts.path.rstrip("/").removesuffix(_API)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _read(reply: http.client.HTTPResponse, deadline: float) -> tuple[bytes, int]:
    """The body, unpacked, and how many bytes it had; the deadline holds for all of it."""
    coding = reply.getheader("Content-Encoding", "").lower()
    unpack = zlib.decompressobj(wbits=31) if coding == "gzip" else None
    body, size_bytes = bytearray(), 0
    while True:
        _left(deadline)
        chunk = reply.read1(_CHUNK_BYTES)
        if not chunk:
            reply.close()  # so that the connection can be used again
            return bytes(body), size_bytes
        size_bytes += len(chunk)
        try:
            body += unpack.decompress(chunk, MOST_BYTES + 1 - len(body)) if unpack is not None else chunk
        except zlib.error:
            raise PrometheusProblem("its answer can't be unpacked") from None
        if len(body) > MOST_BYTES:
            raise PrometheusProblem(f"its answer is larger than {MOST_BYTES >> 20} MiB")


def _answer(status: int, kind: str, body: bytes, size_bytes: int) -> Answer:
    """What a body says; PrometheusProblem."""
    refusals = {401: "it wants credentials", 403: "it refuses these credentials"}
    if status in refusals:
        raise Unasked(f"{refusals[status]} (status {status}); name them in --prometheus-config")
    try:
        document = json.loads(body)
        if document["status"] != "success":
            said = excerpt(str(document.get("error", "")), _LONGEST_TOLD)
            raise PrometheusProblem(f"{said or 'it failed without a reason'} (status {status})")
        found = document["data"]
        if found["resultType"] != "vector":
            raise ValueError("no vector")
        samples = tuple([Sample(_labels(each["metric"]), _number(each["value"][1])) for each in found["result"]])
        told = [str(line) for line in document.get("warnings") or ()]
        told += ["partial answer"] if document.get("isPartial") is True else []
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        word = excerpt(kind.partition(";")[0] or "nothing that is named", 40)
        hint = "; is the path right? Mimir's ends with /prometheus" if status == 404 else ""
        raise Unasked(f"it is no Prometheus: status {status} with {word} at {_API}/query{hint}") from None
    return Answer(samples, tuple(excerpt(line, _LONGEST_TOLD) for line in told[:4]), size_bytes)


def _labels(found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("labels that are none")
    return found


def _number(text: object) -> float:
    if not isinstance(text, str):
        raise ValueError("a value that is none")
    value = float(text)
    return value if math.isfinite(value) else math.nan


def _told(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "its name is not known here"
    if isinstance(error, OSError) and error.strerror:
        return f"not reached: {error.strerror[:1].lower()}{error.strerror[1:]}"
    return f"it answers with something that is no HTTP ({type(error).__name__})"
