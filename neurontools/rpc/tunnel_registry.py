"""TLS tunnels: local unix sockets that lead to daemons on other hosts, so that clients need no TLS.

For each connection to such a socket, a tunnel opens a TLS connection to the remote daemon, in a thread of its own,
because name lookups block. One thread moves the data of all connections.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import socket
import ssl
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from neurontools.net.tls import ClientTls
from neurontools.rpc import socket_path
from neurontools.rpc.http2 import send_goaway
from neurontools.rpc.remote_address import RemoteAddress, remote_address
from neurontools.util.errors import EXIT_USAGE, UserError

CONNECT_SECONDS = 8.0
_DEAD_MILLISECONDS = 60_000  # timeout for a host that no longer answers
_MOST_CONNECTING = 4  # limit of simultaneous attempts to connect to one daemon
_BACKLOG = 8
_STOP_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class _TunnelListener:
    """The listening local socket of a tunnel, and the address of its remote daemon."""

    address: RemoteAddress
    listener: socket.socket
    connecting: int = 0


@dataclass(slots=True)
class _TunnelAttempt:
    """A local client, with the TLS connection opened for it, or with the reason why opening it failed."""

    listener: _TunnelListener
    local: socket.socket
    remote: ssl.SSLSocket | None
    why_not: str = ""

    def close(self) -> None:
        self.local.close()
        if self.remote is not None:
            self.remote.close()


class TunnelSet:
    """A context manager for tunnels. Their sockets are in a private directory. Any thread may call `open`."""

    def __init__(self, tls: ClientTls) -> None:
        self._tls = tls
        self._directory = tempfile.mkdtemp(prefix="neurontools-", dir=_short_directory())
        self._selector = selectors.DefaultSelector()
        self._opened: deque[_TunnelListener] = deque()
        self._attempts: deque[_TunnelAttempt] = deque()
        self._pipes: set[TunnelPipe] = set()
        self._count = 0
        self._is_closing = False
        self._lock = threading.Lock()
        self._has_ended = False  # whether the thread has ended; then its wake-up pipe gets no more data
        self._wakened, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._selector.register(self._wakened, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="tunnels", daemon=True)
        self._thread.start()

    def open(self, address: RemoteAddress) -> str:
        """Opens a tunnel and returns the path of its socket, which works until `close`."""
        self._count += 1
        path = f"{self._directory}/{self._count}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(path)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self._opened.append(_TunnelListener(address, listener))
        self._wake()
        return path

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._wake()
        self._thread.join(_STOP_SECONDS)
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> TunnelSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake(self) -> bool:
        """Wakes the thread that moves data. Returns whether that thread still runs."""
        with self._lock, contextlib.suppress(BlockingIOError):  # BlockingIOError: a full pipe wakes the thread too
            if not self._has_ended:
                os.write(self._waker, b"x")
            return not self._has_ended
        return True

    def _run(self) -> None:
        unfinished: set[TunnelPipe] = set()
        while not self._is_closing:
            ready: set[TunnelPipe] = unfinished
            for key, _ in self._selector.select(0 if unfinished else None):
                if isinstance(key.data, TunnelPipe):
                    ready.add(key.data)
                elif isinstance(key.data, _TunnelListener):
                    self._accept(key.data)
                elif isinstance(key.data, socket.socket):
                    self._drain(key.data)
                else:
                    os.read(self._wakened, 2**12)
            self._register_new()
            unfinished = {pipe for pipe in ready if pipe in self._pipes and self._move(pipe)}
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        with self._lock:
            self._has_ended = True
            os.close(self._wakened)
            os.close(self._waker)
        for done in self._attempts:
            done.close()
        for listener in self._opened:
            listener.listener.close()

    def _register_new(self) -> None:
        while self._opened:
            listener = self._opened.popleft()
            self._selector.register(listener.listener, selectors.EVENT_READ, listener)
        while self._attempts:
            done = self._attempts.popleft()
            done.listener.connecting -= 1
            if done.remote is None:
                send_goaway(done.local, done.why_not)
                self._selector.register(done.local, selectors.EVENT_READ, done.local)
                continue
            pipe = TunnelPipe(done.local, done.remote)
            self._pipes.add(pipe)
            self._selector.register(pipe.local, selectors.EVENT_READ, pipe)
            self._selector.register(pipe.remote, selectors.EVENT_READ, pipe)

    def _accept(self, listener: _TunnelListener) -> None:
        try:
            local, _ = listener.listener.accept()
        except OSError:
            return
        local.setblocking(False)
        if listener.connecting >= _MOST_CONNECTING:
            local.close()
            return
        listener.connecting += 1
        threading.Thread(target=self._connect, args=(listener, local), name="connecting", daemon=True).start()

    def _connect(self, listener: _TunnelListener, local: socket.socket) -> None:
        """Opens the TLS connection for a local client. Runs in its own thread."""
        try:
            done = _TunnelAttempt(listener, local, _connect_tls(listener.address, self._tls.context()))
        except (OSError, ValueError) as error:
            done = _TunnelAttempt(listener, local, None, connection_failure_text(error))
        self._attempts.append(done)
        if not self._wake():
            done.close()

    def _move(self, pipe: TunnelPipe) -> bool:
        """Moves data through a tunnel. Returns whether its TLS socket holds more data that no selector reports."""
        remote_number = pipe.remote.fileno()
        if not pipe.move():
            self._pipes.discard(pipe)
            self._selector.unregister(remote_number)
            self._selector.modify(pipe.local, selectors.EVENT_READ, pipe.local)
            return False
        for end, events in zip((pipe.local, pipe.remote), pipe.selector_events, strict=True):
            if self._selector.get_key(end).events != events:
                self._selector.modify(end, events, pipe)
        return pipe.is_unfinished

    def _drain(self, local: socket.socket) -> None:
        """Discards data until a refused client closes. If the tunnel closed first, the GOAWAY frame could be lost."""
        try:
            if local.recv(2**14):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._selector.unregister(local)
        local.close()


def _connect_tls(address: RemoteAddress, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Connects with TLS and returns a non-blocking socket.

    Raises OSError, or ValueError if the server does not speak gRPC.
    """
    with contextlib.ExitStack() as closing:
        connection = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
        closing.callback(connection.close)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MILLISECONDS)
        secured = context.wrap_socket(connection, server_hostname=address.host)
        closing.callback(secured.close)
        if secured.selected_alpn_protocol() != "h2":
            raise ValueError(NOT_GRPC)
        secured.setblocking(False)
        closing.pop_all()
        return secured


def _short_directory() -> str:
    """Returns a temporary directory with a short path, because paths of sockets must be short."""
    base = tempfile.gettempdir()
    return base if len(os.fsencode(base)) <= 64 else "/tmp"  # noqa: S108 - mkdtemp makes a private directory in it


_PIECE_BYTES = 2**14  # one full TLS record
_MOST_ROUNDS = 16  # number of reads of one connection before other connections get their turn
_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TunnelPipe:
    """Moves data between a local and a remote socket, which are non-blocking and belong to it. For one thread."""

    def __init__(self, local: socket.socket, remote: ssl.SSLSocket) -> None:
        self.local = local
        self.remote = remote
        self._up = b""
        self._down = b""
        self._has_answered = False

    @property
    def selector_events(self) -> tuple[int, int]:
        """The selector events to wait for before `move`: those of the local and those of the remote socket."""
        read, write = selectors.EVENT_READ, selectors.EVENT_WRITE
        local = (0 if self._up else read) | (write if self._down else 0)
        return local, (0 if self._down else read) | (write if self._up else 0)

    def move(self) -> bool:
        """Moves the available data. If a side has closed or failed, closes the remote socket and returns False.

        If the remote daemon never answered, sends a GOAWAY frame with the reason to the local client. The local socket
        stays open, so that the client can read the frame.
        """
        try:
            for _ in range(_MOST_ROUNDS):
                moved = self._move_once()
                if moved is None:
                    return self._end("it ended the connection")
                if not moved:
                    break
        except OSError as error:
            return self._end(connection_failure_text(error))
        return True

    @property
    def is_unfinished(self) -> bool:
        """Whether the TLS socket holds decrypted data that no selector reports."""
        return not self._down and self.remote.pending() > 0

    def _move_once(self) -> bool | None:
        """Moves data once in each direction. Returns whether data came from either side; None if a side has closed."""
        moved = False
        if not self._up:
            data = _receive(self.local)
            if data == b"":
                return None
            self._up = data or b""
            moved = bool(data)
        if self._up:
            self._up = _send(self.remote, self._up)
        if not self._down:
            data = _receive(self.remote)
            if data == b"":
                return None
            self._down = data or b""
            moved = moved or bool(data)
        if self._down:
            self._has_answered = True
            self._down = _send(self.local, self._down)
        return moved

    def _end(self, why: str) -> bool:
        self.remote.close()
        if self._has_answered:
            with contextlib.suppress(OSError):
                self.local.shutdown(socket.SHUT_WR)
        else:
            send_goaway(self.local, why)
        return False


def _receive(end: socket.socket) -> bytes | None:
    try:
        return end.recv(_PIECE_BYTES)
    except _NOT_NOW:
        return None


def _send(end: socket.socket, data: bytes) -> bytes:
    try:
        return data[end.send(data) :]
    except _NOT_NOW:
        return data


# OpenSSL's verification errors (X509_V_ERR_* in x509_vfy.h) of the server's certificate.
_NOT_VALID_YET, _EXPIRED, _HOST_NAME, _ADDRESS = 9, 10, 62, 64
_NOT_TRUSTED = frozenset((18, 19, 20, 21, 24))
_OF_ITS_CERTIFICATE = {
    _NOT_VALID_YET: "its certificate is not valid yet; see whether the clock is off, here or there",
    _EXPIRED: "its certificate has expired; renew it, or see whether the clock here is off",
    _HOST_NAME: "its certificate is for other names; use one of them, or have this one added",
    _ADDRESS: "its certificate is for other names and addresses; use one of them, or have this one added",
}
# Messages for TLS alerts of the server; the keys are the ends of OpenSSL's reason texts.
_ALERTS = (
    (
        "ALERT_UNKNOWN_CA",
        "it does not trust the authority that signed this client's certificate; see its tls.client_ca",
    ),
    ("ALERT_CERTIFICATE_EXPIRED", "this client's certificate has expired; renew it, or see whether its clock is off"),
    ("ALERT_CERTIFICATE_REVOKED", "this client's certificate is revoked; ask for a new one"),
    ("ALERT_CERTIFICATE_REQUIRED", "it wants a certificate; give --tls-cert and --tls-key"),
    ("ALERT_BAD_CERTIFICATE", "it refuses this client's certificate; its log says why (is a clock off?)"),
    ("ALERT_CERTIFICATE_UNKNOWN", "it refuses this client's certificate; its log says why (is a clock off?)"),
    ("ALERT_PROTOCOL_VERSION", "it speaks another version of TLS; update the older of both sides"),
    ("UNSUPPORTED_PROTOCOL", "it speaks another version of TLS; update the older of both sides"),
)
_NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"))
NOT_GRPC = "it speaks TLS but not gRPC; is this the port of neurond --listen?"


def connection_failure_text(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _NOT_TRUSTED:
            return "the authority that signed its certificate is not trusted here; give that authority with --tls-ca"
        otherwise = f"its certificate can't be trusted: {error.verify_message}"
        return _OF_ITS_CERTIFICATE.get(error.verify_code, otherwise)
    if isinstance(error, ssl.SSLEOFError):
        return "it ended the TLS handshake; is this the port of neurond --listen?"
    if isinstance(error, ssl.SSLError):
        return _tls_failure_text(error.reason or "")
    if isinstance(error, TimeoutError):
        return "no answer in time; is a firewall between?"
    if isinstance(error, socket.gaierror):
        return f"its name has no address: {error.strerror}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; is its neurond started with --listen?"
    if isinstance(error, ConnectionResetError):
        return "it reset the connection; is this the port of neurond --listen?"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error)


def _tls_failure_text(name: str) -> str:
    for ending, explanation in _ALERTS:
        if name.endswith(ending):
            return explanation
    if name in _NO_TLS:
        return "it does not speak TLS; is this the port of neurond --listen?"
    return f"TLS failed: {name.replace('_', ' ').lower() or 'no reason given'}"


OPTIONS = ("tls-cert", "tls-key", "tls-ca")
VARIABLES = ("NEURONTOOLS_TLS_CERT", "NEURONTOOLS_TLS_KEY", "NEURONTOOLS_TLS_CA")
_NAMES = ("tls.crt", "tls.key", "ca.crt")  # names of the files in a Kubernetes TLS secret


def client_tls(given: Mapping[str, str], environment: Mapping[str, str]) -> ClientTls:
    """Returns the TLS setup with the client certificate: from the options, the environment or the user's directory.

    Certificate and key come from the same source; the CA certificates come from the first source that has them. Raises
    UserError if no source has a certificate.
    """
    directory = configuration_directory(environment)
    found = tuple(
        path if os.path.exists(path := f"{directory}/{name}") else None  # noqa: PTH110
        for name in _NAMES
    )
    sources = (
        tuple(given.get(option) for option in OPTIONS),
        tuple(environment.get(variable) or None for variable in VARIABLES),
        found,
    )
    if given.get("tls-key") and not given.get("tls-cert"):
        raise UserError("--tls-key needs a certificate; give --tls-cert", EXIT_USAGE)
    certificate, key, _ = next((source for source in sources if source[0]), (None, None, None))
    authorities = next((source[2] for source in sources if source[2]), None)
    if certificate is None:
        raise UserError(
            "a certificate is needed to read over TLS; give --tls-cert, --tls-key and --tls-ca, set "
            f"{VARIABLES[0]} and the like, or put {', '.join(_NAMES)} into {directory}",
            EXIT_USAGE,
        )
    return ClientTls(certificate, key, authorities)


def configuration_directory(environment: Mapping[str, str]) -> str:
    home = environment.get("XDG_CONFIG_HOME", "")
    if not home.startswith("/"):
        home = f"{environment.get('HOME') or '/'}/.config"
    return f"{home}/neurontools/tls"


_open_tunnels: list[TunnelSet] = []


def open_tunnel(text: str, given_by: str, given: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Opens a tunnel to `grpcs://HOST:PORT` until the command ends, and returns its socket path."""
    try:
        address = remote_address(text)
    except ValueError as error:
        raise UserError(f"{given_by}: {error}", EXIT_USAGE) from None
    tunnels = TunnelSet(client_tls(given, environment))
    _open_tunnels.append(tunnels)
    path = tunnels.open(address)
    socket_path.set_display_address(path, address.text)
    return path


def close_tunnels() -> None:
    while _open_tunnels:
        _open_tunnels.pop().close()
