"""Sockets of this host that stand for daemons elsewhere, so that whatever asks a daemon asks one there the same way.

Who connects to one gets a connection over TLS. Connecting takes a thread each, since names are looked up in it; all
that is passed on takes one thread for all of them.
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
from dataclasses import dataclass, field

from neurontools.net.tls.client import ClientTls
from neurontools.rpc.remote.address import RemoteAddress
from neurontools.rpc.remote.pipe import Pipe, say
from neurontools.rpc.remote.reasons import NOT_GRPC, reason

CONNECT_SECONDS = 8.0
_DEAD_MILLISECONDS = 60_000  # without a sign of life of a host that should give one
_MOST_CONNECTING = 4  # to one daemon at a time
_BACKLOG = 8
_STOP_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class _Door:
    """A socket that stands for a daemon."""

    address: RemoteAddress
    listener: socket.socket
    connecting: int = 0


@dataclass(slots=True)
class _Connected:
    """What became of an attempt to connect."""

    door: _Door
    local: socket.socket
    remote: ssl.SSLSocket | None
    why_not: str = field(default="")

    def close(self) -> None:
        """For who has nobody to give it to; may be called again."""
        self.local.close()
        if self.remote is not None:
            self.remote.close()


class Tunnels:
    """A context with the sockets, in a directory of this user's alone. `open` may be called from any thread."""

    def __init__(self, tls: ClientTls) -> None:
        self._tls = tls
        self._directory = tempfile.mkdtemp(prefix="neurontools-", dir=_short_directory())
        self._selector = selectors.DefaultSelector()
        self._asked: deque[_Door] = deque()
        self._done: deque[_Connected] = deque()
        self._pipes: set[Pipe] = set()
        self._count = 0
        self._is_closing = False
        self._lock = threading.Lock()
        self._has_ended = False  # by it nobody uses the numbers of the pipe any more
        self._wakened, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._selector.register(self._wakened, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="tunnels", daemon=True)
        self._thread.start()

    def open(self, address: RemoteAddress) -> str:
        """The path of a socket that stands for the daemon at this address, until `close`."""
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
        self._asked.append(_Door(address, listener))
        self._wake()
        return path

    def close(self) -> None:
        """End all of it; may be called again."""
        if self._is_closing:
            return
        self._is_closing = True
        self._wake()
        self._thread.join(_STOP_SECONDS)
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Tunnels:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake(self) -> bool:
        """Has the thread look; whether it is there to do so."""
        with self._lock, contextlib.suppress(BlockingIOError):  # it will look anyway where the pipe is full
            if not self._has_ended:
                os.write(self._waker, b"x")
            return not self._has_ended
        return True

    def _run(self) -> None:
        unfinished: set[Pipe] = set()
        while not self._is_closing:
            ready: set[Pipe] = unfinished
            for key, _ in self._selector.select(0 if unfinished else None):
                if isinstance(key.data, Pipe):
                    ready.add(key.data)
                elif isinstance(key.data, _Door):
                    self._accept(key.data)
                elif isinstance(key.data, socket.socket):
                    self._drain(key.data)
                else:
                    os.read(self._wakened, 2**12)
            self._take_over()
            unfinished = {pipe for pipe in ready if pipe in self._pipes and self._move(pipe)}
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        with self._lock:
            self._has_ended = True
            os.close(self._wakened)
            os.close(self._waker)
        for done in self._done:
            done.close()
        for door in self._asked:
            door.listener.close()

    def _take_over(self) -> None:
        """What other threads have made."""
        while self._asked:
            door = self._asked.popleft()
            self._selector.register(door.listener, selectors.EVENT_READ, door)
        while self._done:
            done = self._done.popleft()
            done.door.connecting -= 1
            if done.remote is None:
                say(done.local, done.why_not)
                self._selector.register(done.local, selectors.EVENT_READ, done.local)
                continue
            pipe = Pipe(done.local, done.remote)
            self._pipes.add(pipe)
            self._selector.register(pipe.local, selectors.EVENT_READ, pipe)
            self._selector.register(pipe.remote, selectors.EVENT_READ, pipe)

    def _accept(self, door: _Door) -> None:
        try:
            local, _ = door.listener.accept()
        except OSError:
            return
        local.setblocking(False)
        if door.connecting >= _MOST_CONNECTING:
            local.close()
            return
        door.connecting += 1
        threading.Thread(target=self._connect, args=(door, local), name="connecting", daemon=True).start()

    def _connect(self, door: _Door, local: socket.socket) -> None:
        """In a thread of its own."""
        try:
            done = _Connected(door, local, _connected(door.address, self._tls.context()))
        except (OSError, ValueError) as error:
            done = _Connected(door, local, None, reason(error))
        self._done.append(done)
        if not self._wake():
            done.close()

    def _move(self, pipe: Pipe) -> bool:
        """Passes on what is there; whether there is more of which no selector will tell."""
        remote_number = pipe.remote.fileno()
        if not pipe.move():
            self._pipes.discard(pipe)
            self._selector.unregister(remote_number)
            self._selector.modify(pipe.local, selectors.EVENT_READ, pipe.local)
            return False
        for end, events in zip((pipe.local, pipe.remote), pipe.wants, strict=True):
            if self._selector.get_key(end).events != events:
                self._selector.modify(end, events, pipe)
        return pipe.is_unfinished

    def _drain(self, local: socket.socket) -> None:
        """Reads from one that was told why until it ends: closed before, it would not hear it."""
        try:
            if local.recv(2**14):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._selector.unregister(local)
        local.close()


def _connected(address: RemoteAddress, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection behind its handshake, non-blocking; OSError, or ValueError when no gRPC is spoken there."""
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
    """Where the paths of sockets stay short."""
    base = tempfile.gettempdir()
    return base if len(os.fsencode(base)) <= 64 else "/tmp"  # noqa: S108 - mkdtemp makes one of our own in it
