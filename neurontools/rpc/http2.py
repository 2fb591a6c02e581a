"""An HTTP/2 client connection over a unix socket (RFC 9113), with one open stream at a time.

Implements frames, settings, flow control and header compression (HPACK, RFC 7541). A subclass of `Http2Stream` handles
the contents. No TLS, push, priorities or dynamic header table: a peer that uses them causes ProtocolError. The imports
are minimal because `neuron-ls` loads this module. A process with such a connection can fork safely.

The client announces SETTINGS_HEADER_TABLE_SIZE 0, so decoding is a pure function of one header block. The client sends
its own fields as plain literals, which every decoder must accept.
"""

import _socket
import sys
from time import monotonic

from neurontools.rpc.wire import append_varint

# Frame types (RFC 9113, section 6).
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PUSH_PROMISE = 0, 1, 3, 4, 5
_PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 6, 7, 8, 9
# Frame flags (RFC 9113, section 6). ACK is a flag of SETTINGS and PING only.
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
# Settings (RFC 9113, section 6.5.2).
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 1, 2, 4, 5
# Error codes (RFC 9113, section 7).
REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM, INADEQUATE_SECURITY = 7, 8, 11, 12

MAX_WINDOW_BYTES = 2**31 - 1
DEFAULT_WINDOW_BYTES = 2**16 - 1  # flow-control window of each connection and stream until a WINDOW_UPDATE
_FRAME_HEADER_BYTES = 9
_DEFAULT_FRAME_BYTES = 2**14  # longest received frame, and longest sent frame until the peer changes that
MAX_STREAM_ID = 2**31 - 1
_SETTING_RANGES = {_INITIAL_WINDOW_SIZE: (0, MAX_WINDOW_BYTES), _MAX_FRAME_SIZE: (_DEFAULT_FRAME_BYTES, 2**24 - 1)}
_MAX_HEADER_BLOCK_BYTES = 2**18
_RECEIVE_BYTES = 2**16  # read buffer; malloc would use mmap for a larger one, which costs time
_MAX_CONNECT_SECONDS = 1e6
_MOST_UNSENT_BYTES = 2**16  # limit for acknowledgements that the server does not read


class ProtocolError(Exception):
    """The peer violated HTTP/2, or used a feature that this client lacks."""


class StreamReset(Exception):
    """The peer reset the stream; `code` is the HTTP/2 error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ConnectionEnded(Exception):
    """The peer closed the connection, or accepts no more streams (GOAWAY). The text is the peer's reason."""


class Http2Stream:
    """One HTTP/2 stream: a request and its reply. Subclasses handle the headers and data of the reply."""

    __slots__ = ("id", "is_ended", "received_bytes", "send_window_bytes")

    def __init__(self) -> None:
        self.id = 0  # stream ID; 0 until the stream is opened
        self.is_ended = False
        self.send_window_bytes = 0
        self.received_bytes = 0  # received bytes for which no WINDOW_UPDATE was sent yet

    def receive_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Handles the headers or the trailers of the reply."""

    def receive_data(self, data: bytes) -> None:
        """Handles a part of the reply's body."""


class Http2Connection:
    """A connection to the server at a socket. Connects when it is created. For one thread of one process.

    `deadline` is a time.monotonic() value; after it, sending and receiving raise TimeoutError. None: no deadline. After
    any error, only `close` is allowed.

    `window_bytes` is our flow-control window, at least DEFAULT_WINDOW_BYTES. It is refilled before each stream and when
    half of it is used.

    Raises OSError of connect(2), ValueError for an impossible path, TimeoutError if no server accepts within
    `timeout_seconds`.
    """

    def __init__(self, socket_path: str, timeout_seconds: float, *, window_bytes: int = MAX_WINDOW_BYTES) -> None:
        self.deadline: float | None = None
        self._window_bytes = window_bytes
        self._received = bytearray()
        self._received_bytes = 0
        self._peer_settings = {_INITIAL_WINDOW_SIZE: DEFAULT_WINDOW_BYTES, _MAX_FRAME_SIZE: _DEFAULT_FRAME_BYTES}
        self._send_window_bytes = DEFAULT_WINDOW_BYTES
        self._is_greeted = False
        self._is_going_away = False
        self._goaway_text = ""
        self._next_stream_id = 1
        self._stream = Http2Stream()
        # The incomplete header block: stream ID, whether it ends the stream, its bytes so far.
        self._header_block: tuple[int, bool, bytearray] | None = None
        settings = ((_HEADER_TABLE_SIZE, 0), (_ENABLE_PUSH, 0), (_INITIAL_WINDOW_SIZE, window_bytes))
        self._unsent = bytearray(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, b"".join(key.to_bytes(2) + value.to_bytes(4) for key, value in settings))
        )
        self._widen_window(0, window_bytes - DEFAULT_WINDOW_BYTES)
        self._sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            connect(self._sock, socket_path, timeout_seconds)
        except BaseException:
            self._sock.close()
            raise
        self._is_closed = False

    @property
    def accepts_streams(self) -> bool:
        """Whether the client may open another stream. Does not check whether the server closed the connection."""
        return not self._is_closed and not self._is_going_away and self._next_stream_id <= MAX_STREAM_ID

    def open(self, stream: Http2Stream, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Opens a stream and sends its request. The reply may start while the peer's window delays the request."""
        stream.id = self._next_stream_id
        stream.send_window_bytes = self._peer_settings[_INITIAL_WINDOW_SIZE]
        self._next_stream_id += 2
        self._stream = stream
        self._return_window()
        self._unsent += _frame(_HEADERS, _END_HEADERS, stream.id, encode_headers(headers))
        self._send_body(stream, body)

    def receive(self) -> None:
        """Receives and handles one frame (RFC 9113, section 4.1). Drops frames of unknown types or other streams."""
        header = self._receive_exactly(_FRAME_HEADER_BYTES)
        length, kind, flags = int.from_bytes(header[:3]), header[3], header[4]
        stream_id = int.from_bytes(header[5:]) & MAX_STREAM_ID
        if not self._is_greeted and kind != _SETTINGS:
            raise ProtocolError("not an HTTP/2 server")
        if length > _DEFAULT_FRAME_BYTES:
            raise ProtocolError(f"frame of {length} bytes, more than the {_DEFAULT_FRAME_BYTES} allowed")
        if self._header_block is not None and kind != _CONTINUATION:
            raise ProtocolError(f"frame of type {kind} inside a header block")
        payload = self._receive_exactly(length)
        self._is_greeted = True
        handler = self._FRAME_HANDLERS.get(kind)
        if handler is not None:
            handler(self, flags, stream_id, payload)

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive_available(self) -> None:
        """Handles the frames that have arrived and sends queued data, without waiting.

        Reads the socket once, so that a peer that sends without end does not starve other connections.
        """
        self._sock.settimeout(0.0)
        try:
            chunk = self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            chunk = None
        if chunk == b"":
            raise ConnectionEnded(self._goaway_text or "the server closed the connection")
        self._received += chunk or b""
        while self._has_frame():
            self.receive()
        try:
            del self._unsent[: self._sock.send(self._unsent) if self._unsent else 0]
        except BlockingIOError:
            if len(self._unsent) > _MOST_UNSENT_BYTES:
                raise ProtocolError("the server takes nothing of what it asks for") from None
        except ConnectionError:
            self._drop_unsent()

    def _has_frame(self) -> bool:
        """Whether `receive` can handle the next frame without waiting: it is complete, or longer than allowed."""
        if len(self._received) < _FRAME_HEADER_BYTES:
            return False
        length = int.from_bytes(self._received[:3])
        return length > _DEFAULT_FRAME_BYTES or len(self._received) >= _FRAME_HEADER_BYTES + length

    def flush(self) -> None:
        """Sends queued data, such as acknowledgements. `receive` calls this before it waits.

        If the server has closed the connection, drops the data. `receive` still returns the last frames of the server.
        """
        if self._unsent:
            try:
                self._ready_socket().sendall(self._unsent)
                self._unsent.clear()
            except ConnectionError:
                self._drop_unsent()

    def _drop_unsent(self) -> None:
        self._unsent.clear()
        self._is_going_away = True

    def shut_down(self) -> None:
        """Ends the connection from any thread. A thread that waits in it gets ConnectionEnded."""
        try:  # noqa: SIM105 - importing contextlib takes as long as a call
            self._sock.shutdown(_socket.SHUT_RDWR)
        except OSError:
            pass  # the socket is closed already

    def close(self) -> None:
        """Closes the connection; the peer cancels an open stream. May be called again."""
        self._is_closed = True
        self._sock.close()

    def _send_body(self, stream: Http2Stream, body: bytes) -> None:
        """Sends a body as DATA frames. While the peer's windows are full, receives frames (RFC 9113, 5.2)."""
        sent = 0
        while sent < len(body) and not stream.is_ended:
            room = min(self._peer_settings[_MAX_FRAME_SIZE], self._send_window_bytes, stream.send_window_bytes)
            if room <= 0:
                self.receive()
                continue
            chunk = body[sent : sent + room]
            sent += len(chunk)
            self._send_window_bytes -= len(chunk)
            stream.send_window_bytes -= len(chunk)
            self._unsent += _frame(_DATA, _END_STREAM if sent == len(body) else 0, stream.id, chunk)
        if sent < len(body):  # the server replied early, so the end of the request is not sent
            self._unsent += _frame(_RST_STREAM, 0, stream.id, CANCEL.to_bytes(4))

    def _receive_exactly(self, size: int) -> bytes:
        """Returns the next `size` bytes from the server. Sends queued data before it waits."""
        while len(self._received) < size:
            self.flush()
            chunk = self._ready_socket().recv(_RECEIVE_BYTES)
            if not chunk:
                raise ConnectionEnded(self._goaway_text or "the server closed the connection")
            self._received += chunk
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    def _ready_socket(self) -> _socket.socket:
        """Returns the socket, with the time until the deadline as timeout. Raises TimeoutError after the deadline."""
        remaining_seconds = None if self.deadline is None else self.deadline - monotonic()
        if remaining_seconds is not None and remaining_seconds <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining_seconds)
        return self._sock

    def _return_window(self) -> None:
        """Lets the peer send as many bytes as were received since the last WINDOW_UPDATE (RFC 9113, section 5.2)."""
        self._widen_window(0, self._received_bytes)
        self._received_bytes = 0
        stream = self._stream
        if not stream.is_ended:
            self._widen_window(stream.id, stream.received_bytes)
            stream.received_bytes = 0

    def _widen_window(self, stream_id: int, increment_bytes: int) -> None:
        """Sends WINDOW_UPDATE for a stream, or for the connection (stream 0), if the increment is not 0."""
        if increment_bytes:
            self._unsent += _frame(_WINDOW_UPDATE, 0, stream_id, increment_bytes.to_bytes(4))

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Handles DATA. Padding and frames of closed streams count for flow control too."""
        stream = self._stream
        self._received_bytes += len(payload)
        if stream_id == stream.id:
            stream.received_bytes += len(payload)
            stream.receive_data(_unpadded(flags, payload))
            stream.is_ended = bool(flags & _END_STREAM)
        if self._received_bytes > self._window_bytes // 2:
            self._return_window()

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        fragment = _unpadded(flags, payload)
        if flags & _PRIORITY:
            if len(fragment) < 5:
                raise ProtocolError("HEADERS frame too short")
            fragment = fragment[5:]
        self._header_block = stream_id, bool(flags & _END_STREAM), bytearray()
        self._on_continuation(flags, stream_id, fragment)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._header_block is None or self._header_block[0] != stream_id:
            raise ProtocolError("CONTINUATION frame without its HEADERS")
        _, ends_stream, octets = self._header_block
        octets += payload
        if len(octets) > _MAX_HEADER_BLOCK_BYTES:
            raise ProtocolError(f"header block of more than {_MAX_HEADER_BLOCK_BYTES} bytes")
        if flags & _END_HEADERS:
            self._header_block = None
            if stream_id == self._stream.id:
                try:
                    headers = decode_headers(bytes(octets))
                except ValueError as error:
                    raise ProtocolError(str(error)) from error
                self._stream.receive_headers(headers)
                self._stream.is_ended = ends_stream

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == self._stream.id:
            raise StreamReset(int.from_bytes(payload[:4]))

    def _on_settings(self, flags: int, _stream_id: int, payload: bytes) -> None:
        """Handles SETTINGS. A new initial window size also changes the window of the open stream (section 6.9.2)."""
        if flags & _ACK:
            return
        if len(payload) % 6:
            raise ProtocolError("SETTINGS frame of a wrong size")
        old_window_bytes = self._peer_settings[_INITIAL_WINDOW_SIZE]
        for start in range(0, len(payload), 6):
            setting, value = int.from_bytes(payload[start : start + 2]), int.from_bytes(payload[start + 2 : start + 6])
            lowest, highest = _SETTING_RANGES.get(setting, (0, value))
            if not lowest <= value <= highest:
                raise ProtocolError(f"value {value} of HTTP/2 setting {setting}")
            if setting in self._peer_settings:
                self._peer_settings[setting] = value
        self._stream.send_window_bytes += self._peer_settings[_INITIAL_WINDOW_SIZE] - old_window_bytes
        self._unsent += _frame(_SETTINGS, _ACK, 0, b"")

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise ProtocolError("PUSH_PROMISE frame")  # the client's SETTINGS forbid server push

    def _on_ping(self, flags: int, _stream_id: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise ProtocolError("PING frame of a wrong size")
        if not flags & _ACK:
            self._unsent += _frame(_PING, _ACK, 0, payload)

    def _on_goaway(self, _flags: int, _stream_id: int, payload: bytes) -> None:
        """Handles GOAWAY. The peer still answers streams up to the last stream ID; later ones need a new connection."""
        self._is_going_away = True
        last_stream_id = int.from_bytes(payload[:4]) & MAX_STREAM_ID
        self._goaway_text = payload[8:].decode(errors="replace")
        if self._stream.id > last_stream_id:
            raise ConnectionEnded(self._goaway_text or "the server is shutting down")

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        increment = int.from_bytes(payload) & MAX_WINDOW_BYTES
        if len(payload) != 4 or not increment:
            raise ProtocolError("WINDOW_UPDATE frame without an increment")
        if stream_id == 0:
            self._send_window_bytes += increment
        elif stream_id == self._stream.id:
            self._stream.send_window_bytes += increment

    _FRAME_HANDLERS = {  # noqa: RUF012 - never changed
        _DATA: _on_data,
        _HEADERS: _on_headers,
        _RST_STREAM: _on_rst_stream,
        _SETTINGS: _on_settings,
        _PUSH_PROMISE: _on_push_promise,
        _PING: _on_ping,
        _GOAWAY: _on_goaway,
        _WINDOW_UPDATE: _on_window_update,
        _CONTINUATION: _on_continuation,
    }


def connect(sock: _socket.socket, socket_path: str, timeout_seconds: float) -> None:
    """Connects to a unix socket. Raises TimeoutError if the server does not accept in time.

    While the server's backlog is full, a non-blocking connect to a unix socket fails immediately, and no event reports
    when it can succeed. So this uses a blocking connect with SO_SNDTIMEO as its timeout (unix(7), socket(7)).
    Afterwards the socket has no timeout in Python.
    """
    microseconds = int(min(timeout_seconds, _MAX_CONNECT_SECONDS) * 1e6)
    if microseconds <= 0:
        raise TimeoutError("no time left to connect")
    timeval = b"".join(part.to_bytes(8, sys.byteorder) for part in divmod(microseconds, 1_000_000))
    sock.settimeout(None)
    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, timeval)
    try:
        sock.connect(socket_path)
    except BlockingIOError as error:
        raise TimeoutError(f"the server accepted no connection within {timeout_seconds:.3g} s") from error


def send_goaway(connection: _socket.socket, reason: str, last_stream_id: int = 0, error_code: int = 0) -> None:
    """Sends a client an empty SETTINGS frame and GOAWAY with the reason, and shuts down our side for writing.

    Does nothing if the client has disconnected.
    """
    payload = last_stream_id.to_bytes(4) + error_code.to_bytes(4) + reason.encode("utf-8", "replace")
    try:
        connection.send(_frame(_SETTINGS, 0, 0, b"") + _frame(_GOAWAY, 0, 0, payload))
        connection.shutdown(_socket.SHUT_WR)
    except OSError:
        return


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream_id.to_bytes(4) + payload


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolError("padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


# The static table of RFC 7541, Appendix A, from index 1: header names, each with its value after "=" if it has one.
_STATIC_ENTRIES = (
    ":authority|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|:scheme=https|:status=200|"
    ":status=204|:status=206|:status=304|:status=400|:status=404|:status=500|accept-charset|"
    "accept-encoding=gzip, deflate|accept-language|accept-ranges|accept|access-control-allow-origin|age|"
    "allow|authorization|cache-control|content-disposition|content-encoding|content-language|content-length|"
    "content-location|content-range|content-type|cookie|date|etag|expect|expires|from|host|if-match|"
    "if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|link|location|max-forwards|"
    "proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|server|set-cookie|"
    "strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate"
)
STATIC_TABLE = [(name, value) for name, _, value in (e.encode().partition(b"=") for e in _STATIC_ENTRIES.split("|"))]

# The bit lengths of the Huffman codes of the 256 octets and of EOS, as base-36 digits (RFC 7541, Appendix B).
# The lengths define a canonical code: the codes of one length count upwards in the order of the symbols.
_HUFFMAN_CODE_LENGTHS = (
    "dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6ca"
    "d67777777777777777777777878djde6f56565666577666567655677777fbeds"
    "kmkkmmmnmnnnnnonoomnonnnnlmnmnnomlkmmnnlnmmolmnnllmlnmnnkmmmnmmn"
    "qqkjmnmpqqqrrqopjlqrrqrollqqsrrrkoklmllnmmppooqnqrqqrrrrrsrrrrrq"
    "u"
)
_END_OF_STRING = 256

_MAX_INTEGER = 2**32  # limit of decoded integers; any valid length or index is far smaller

_huffman_symbols: dict[tuple[int, int], int] | None = None  # {(bit length, code): symbol}, made at first use


def encode_headers(headers: list[tuple[bytes, bytes]]) -> bytes:
    """Encodes a header block with literals only: no indexing, no Huffman code (RFC 7541, section 6.2.2)."""
    return b"".join(b"\0" + _encode_string(name) + _encode_string(value) for name, value in headers)


def decode_headers(block: bytes) -> list[tuple[bytes, bytes]]:
    """Decodes a complete header block (RFC 7541, section 6). Returns its fields, in order.

    Raises ValueError if the block is malformed or refers to the dynamic table, whose size is always 0.
    """
    headers: list[tuple[bytes, bytes]] = []
    position = 0
    while position < len(block):
        first = block[position]
        if first & 0x80:  # RFC 7541, section 6.1: indexed field
            index, position = _decode_integer(block, position, 7)
            headers.append(_static_entry(index))
        elif first & 0xE0 == 0x20:  # RFC 7541, section 6.3: dynamic table size update
            size, position = _decode_integer(block, position, 5)
            if size:
                raise ValueError(f"dynamic table of {size} bytes where none was allowed")
        else:  # section 6.2: literal field; "incremental indexing" (0x40) has no effect on a table of size 0
            index, position = _decode_integer(block, position, 6 if first & 0x40 else 4)
            if index:
                name = _static_entry(index)[0]
            else:
                name, position = _decode_string(block, position)
            value, position = _decode_string(block, position)
            headers.append((name, value))
    return headers


def decode_huffman(coded: bytes) -> bytes:
    """Decodes a Huffman-coded string (RFC 7541, section 5.2). Raises ValueError if code or padding is invalid."""
    symbols = _huffman_symbols or _make_huffman_symbols()
    octets = bytearray()
    length = code = 0
    for byte in coded:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            length += 1
            symbol = symbols.get((length, code))
            if symbol is None:
                continue
            if symbol == _END_OF_STRING:
                raise ValueError("end-of-string symbol inside a Huffman-coded string")
            octets.append(symbol)
            length = code = 0
    if length > 7 or code != (1 << length) - 1:
        raise ValueError("invalid padding of a Huffman-coded string")
    return bytes(octets)


def _static_entry(index: int) -> tuple[bytes, bytes]:
    if not 1 <= index <= len(STATIC_TABLE):
        raise ValueError(f"header index {index} outside of the static table")
    return STATIC_TABLE[index - 1]


def _encode_string(octets: bytes) -> bytes:
    """Encodes a string: its length with a 7-bit prefix (RFC 7541, section 5.1), then its octets (section 5.2)."""
    remainder = len(octets) - 127
    if remainder < 0:
        return bytes((len(octets),)) + octets
    length = bytearray((127,))
    append_varint(length, remainder)
    return bytes(length) + octets


def _decode_integer(block: bytes, position: int, prefix_bits: int) -> tuple[int, int]:
    """Decodes an integer (RFC 7541, section 5.1). Returns the integer and the position after it."""
    mask = (1 << prefix_bits) - 1
    value = _octet(block, position) & mask
    position += 1
    if value < mask:
        return value, position
    shift = 0
    while True:
        octet = _octet(block, position)
        position += 1
        value += (octet & 127) << shift
        shift += 7
        if value > _MAX_INTEGER or shift > 35:
            raise ValueError("header integer too large")
        if octet < 128:
            return value, position


def _decode_string(block: bytes, position: int) -> tuple[bytes, int]:
    """Decodes a string literal (RFC 7541, section 5.2). Returns the string and the position after it."""
    is_huffman = _octet(block, position) & 0x80
    length, start = _decode_integer(block, position, 7)
    end = start + length
    if end > len(block):
        raise ValueError("header string runs past the end of its block")
    octets = block[start:end]
    return (decode_huffman(octets) if is_huffman else octets), end


def _octet(block: bytes, position: int) -> int:
    if position >= len(block):
        raise ValueError("header block ends inside a field")
    return block[position]


def _make_huffman_symbols() -> dict[tuple[int, int], int]:
    global _huffman_symbols
    symbols = {}
    code = previous_length = 0
    lengths = [int(digit, 36) for digit in _HUFFMAN_CODE_LENGTHS]
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths)):
        code <<= length - previous_length
        symbols[length, code] = symbol
        code += 1
        previous_length = length
    _huffman_symbols = symbols  # assigned when complete, because other threads may read it
    return symbols
