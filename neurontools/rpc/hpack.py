"""HPACK header compression (RFC 7541) for a client without a dynamic table.

The client announces SETTINGS_HEADER_TABLE_SIZE 0, so decoding is a pure function of one header block. The client sends
its own fields as plain literals, which every decoder must accept. The imports are minimal because `neuron-ls` loads
this module.
"""

from neurontools.rpc.wire import append_varint

# The static table of RFC 7541, Appendix A. Its first entry has index 1.
STATIC_TABLE = (
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
)

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


def encode(headers: list[tuple[bytes, bytes]]) -> bytes:
    """Encodes a header block with literals only: no indexing, no Huffman code (RFC 7541, section 6.2.2)."""
    return b"".join(b"\0" + _encode_string(name) + _encode_string(value) for name, value in headers)


def decode(block: bytes) -> list[tuple[bytes, bytes]]:
    """Decodes a complete header block (RFC 7541, section 6). Returns its fields, in order.

    Raises ValueError if the block is malformed.

    A reference to the dynamic table is an error, because the table size is always 0.
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
    """Makes the table of the Huffman codes, in canonical order. Other threads see it only when it is complete."""
    global _huffman_symbols
    symbols = {}
    code = previous_length = 0
    lengths = [int(digit, 36) for digit in _HUFFMAN_CODE_LENGTHS]
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths)):
        code <<= length - previous_length
        symbols[length, code] = symbol
        code += 1
        previous_length = length
    _huffman_symbols = symbols
    return symbols
