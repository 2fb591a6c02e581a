"""JSON as the original tools write it: the layout and the escapes of Go's encoder, in the order of the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]

# What Go escapes, and DEL and C1 besides: to a parser it is the same text, to a terminal it is harmless.
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_BIDI_CONTROLS = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPES: dict[int, str] = {code: f"\\u{code:04x}" for code in (*map(ord, "<>&"), *_CONTROLS, *_BIDI_CONTROLS)}
_ESCAPES |= {ord('"'): '\\"', ord("\\"): "\\\\"}
_ESCAPES |= {ord("\b"): "\\b", ord("\f"): "\\f", ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
_ESCAPES |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
_HARMLESS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.,:/ =")


def string(text: str) -> str:
    """A JSON string; a lone surrogate, which has no UTF-8, becomes U+FFFD as in Go."""
    if _HARMLESS.issuperset(text):
        return f'"{text}"'
    return f'"{text.translate(_ESCAPES)}"'


def indented(value: JsonValue, indent: str = "    ", margin: str = "\n") -> str:
    """The document, a key or an element a line, without a newline at its end."""
    if isinstance(value, str):
        return string(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    deeper = margin + indent
    if isinstance(value, Mapping):
        parts = [f"{string(key)}: {indented(item, indent, deeper)}" for key, item in value.items()]
        opening, closing = "{", "}"
    else:
        parts = [indented(item, indent, deeper) for item in value]
        opening, closing = "[", "]"
    if not parts:
        return opening + closing
    return f"{opening}{deeper}{(',' + deeper).join(parts)}{margin}{closing}"
