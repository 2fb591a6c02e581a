"""TCP listeners: listening addresses, accepting, and limits on the number and rate of connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from neurontools.util.rate_limited_log import RateLimitedLogger

REST_SECONDS = 0.1
_AT_ONCE = 16  # limit of connections accepted in a row, before the event loop does other work
_NO_FILES = (errno.EMFILE, errno.ENFILE)

_log_rate_limited = RateLimitedLogger(logging.getLogger(__name__), logging.WARNING)

ConnectionHandler = Callable[[socket.socket, Any], None]
"""Handler that gets each accepted connection, non-blocking, and its address. The handler owns the connection."""

RefusalHandler = Callable[[socket.socket, str], None]
"""Handler that may send a client the reason for a refused connection. It must not close the connection."""


class Acceptor:
    """Accepts connections of a listening socket, which it owns, and passes them to `on_connection`.

    To be used in the event loop's thread only. The log calls the listener `name`. If the process has no file descriptor
    left (EMFILE, ENFILE), passes connections to `refuse` instead.
    """

    def __init__(
        self,
        listener: socket.socket,
        on_connection: ConnectionHandler,
        *,
        name: str,
        refuse: RefusalHandler = lambda _connection, _reason: None,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._on_connection = on_connection
        self._name = name
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self._resting: asyncio.TimerHandle | None = None
        self._spare: int | socket.socket | None = _open_reserve()
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Closes the listening socket. Accepted connections stay open."""
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._close_spare()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._handle_accept_error(error)
                return
            connection.setblocking(False)
            self._on_connection(connection, address)

    def _handle_accept_error(self, error: OSError) -> None:
        """If no file descriptor is free, refuses queued connections. Then pauses accepting for REST_SECONDS."""
        if error.errno in _NO_FILES:
            for _ in range(_AT_ONCE):
                if not self._refuse_one(error.strerror or str(error)):
                    break
        _log_rate_limited(
            "%s: cannot accept connections: %s; raise the limit of open files, or end processes that hold many",
            self._name,
            error.strerror,
        )
        self._loop.remove_reader(self._listener)
        self._resting = self._loop.call_later(REST_SECONDS, self._resume)

    def _refuse_one(self, reason: str) -> bool:
        self._close_spare()
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the accept queue is empty, or no descriptor is free
            return False
        # The connection stays open in place of the reserve descriptor, so that the client can read the reason.
        self._spare = connection
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            self._refuse(connection, f"there is no descriptor for it ({reason})")
            # Reads the client's data: closing a socket with unread data would send a reset and drop the refusal.
            connection.recv(2**16)
        return True

    def _resume(self) -> None:
        self._resting = None
        self._close_spare()
        self._spare = _open_reserve()
        self._loop.add_reader(self._listener, self._accept)

    def _close_spare(self) -> None:
        spare, self._spare = self._spare, None
        if isinstance(spare, socket.socket):
            spare.close()
        elif spare is not None:
            os.close(spare)


def _open_reserve() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def listen_address(text: str) -> tuple[str | None, int]:
    """Parses HOST:PORT. Returns host and port; host None stands for all addresses. Raises ValueError if malformed."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError(
            f"{text[:60]!r} has no port from 0 to 65535; write HOST:PORT, such as 127.0.0.1:8000, "
            "or :8000 for all addresses"
        )
    if ":" in bare and bare == host:
        raise ValueError(f"{text[:60]!r}: put an IPv6 address into brackets, such as [::1]:8000")
    return bare or None, int(port)


async def listeners(host: str | None, port: int, *, backlog: int) -> list[socket.socket]:
    """Opens a listening TCP socket for each address of the host; None means all addresses.

    Skips addresses that this host lacks. Raises OSError if no address is left or a socket can't be opened. With port 0,
    the kernel chooses a port for the first socket, and the other sockets use the same port.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            chosen = opened[0].getsockname()[1] if opened else port
            try:
                opened.append(_listening_socket(family, (address[0], chosen, *address[2:]), backlog))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error  # a host without IPv6 may have a name with an IPv6 address
    except OSError:
        for each in opened:
            each.close()
        raise
    if not opened:
        raise missing or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    return opened


def _listening_socket(family: int, address: tuple[Any, ...], backlog: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class ConnectionSlot:
    """The slot of a connection. A waiting connection (idle, or without a request so far) may be evicted."""

    __slots__ = ("_limiter", "make_room", "peer")

    def __init__(self, limiter: ConnectionLimiter, peer: Hashable, make_room: Callable[[], None]) -> None:
        self._limiter = limiter
        self.peer = peer
        self.make_room = make_room

    def mark_busy(self) -> None:
        self._limiter.mark(self, waiting=False)

    def mark_waiting(self) -> None:
        self._limiter.mark(self, waiting=True)

    def release(self) -> None:
        """Frees the slot. Does nothing if the connection was already evicted."""
        self._limiter.release(self)


class ConnectionLimiter:
    """Limits the number of connections to `most` in total and to `share` for each peer."""

    def __init__(self, most: int, share: int) -> None:
        self._most = most
        self._share = share
        self._count = 0
        self._of_peer: dict[Hashable, dict[ConnectionSlot, bool]] = {}  # True for a slot that waits; longest wait first

    def __len__(self) -> int:
        return self._count

    def acquire(self, peer: Hashable, make_room: Callable[[], None]) -> ConnectionSlot | None:
        """Returns a slot for a new connection of a peer; None if a connection must be evicted but none is waiting.

        If the peer is at its limit, evicts the longest waiting connection of this peer. If all slots are taken, evicts
        the longest waiting connection of the peer with the most connections. Calls `make_room` of the evicted
        connection.
        """
        own = self._of_peer.get(peer, {})
        if len(own) >= self._share or self._count >= self._most:
            crowds = [own] if len(own) >= self._share else sorted(self._of_peer.values(), key=len, reverse=True)
            loser = next((slot for crowd in crowds for slot, waiting in crowd.items() if waiting), None)
            if loser is None:
                return None
            self.release(loser)
            loser.make_room()
        slot = ConnectionSlot(self, peer, make_room)
        self._of_peer.setdefault(peer, {})[slot] = True
        self._count += 1
        return slot

    def mark(self, slot: ConnectionSlot, *, waiting: bool) -> None:
        """Marks a connection as waiting or busy. Its waiting time starts now."""
        crowd = self._of_peer.get(slot.peer, {})
        if crowd.pop(slot, None) is not None:
            crowd[slot] = waiting

    def release(self, slot: ConnectionSlot) -> None:
        crowd = self._of_peer.get(slot.peer, {})
        if crowd.pop(slot, None) is not None:
            self._count -= 1
        if not crowd:
            self._of_peer.pop(slot.peer, None)


class RateLimiter:
    """Token bucket that serves peers round-robin, so that one busy peer delays only itself.

    Allows `per_second` on average, and a `burst` at once. To be used in the event loop's thread only.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._at_seconds = 0.0
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}  # waiting calls by peer; the next peer is first
        self._next: asyncio.TimerHandle | None = None

    async def acquire(self, peer: Hashable) -> None:
        loop = asyncio.get_running_loop()
        self._refill(loop.time())
        if self._tokens >= 1 and not self._waiting:
            self._tokens -= 1
            return
        token: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(peer, deque()).append(token)
        if self._next is None:
            self._set_timer(loop)
        await token

    def _refill(self, now_seconds: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now_seconds - self._at_seconds) * self._per_second)
        self._at_seconds = now_seconds

    def _grant_tokens(self) -> None:
        self._next = None
        loop = asyncio.get_running_loop()
        self._refill(loop.time())
        while self._tokens >= 1 and self._waiting:
            peer, tokens = next(iter(self._waiting.items()))
            del self._waiting[peer]
            token = tokens.popleft()
            if tokens:
                self._waiting[peer] = tokens
            if not token.done():  # not cancelled
                self._tokens -= 1
                token.set_result(None)
        if self._waiting:
            self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = loop.call_later(max(0.0, (1 - self._tokens) / self._per_second), self._grant_tokens)


def client_key(address: str) -> str:
    """Returns the key for limits per client: an IPv4 address, or the /64 network of an IPv6 address.

    `address` has the form that `accept` returns.
    """
    host = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(host, ipaddress.IPv4Address):
        return str(host)
    if host.ipv4_mapped is not None:
        return str(host.ipv4_mapped)
    return str(ipaddress.ip_network((host, 64), strict=False))


async def wait_ready(connection: socket.socket, *, to_write: bool = False) -> None:
    """Waits until data can be read (with `to_write`: written), or until the peer has closed the connection."""
    loop = asyncio.get_running_loop()
    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    is_ready: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        remove(connection)
        if not is_ready.done():
            is_ready.set_result(None)

    add(connection, ready)
    try:
        await is_ready
    finally:
        remove(connection)
