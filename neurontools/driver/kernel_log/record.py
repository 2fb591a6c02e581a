"""One record of the kernel's log, as /dev/kmsg gives it to readers.

Source: Documentation/ABI/testing/dev-kmsg of Linux: `priority,sequence,microseconds,flags;text`, then lines that begin
with a blank and hold variables. In the text, characters below a blank, above 126 and the backslash are \\xNN.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ERROR, WARNING, INFORMATION = 3, 4, 6  # levels of syslog
_LEVELS = 8
_LARGEST = 2**64 - 1
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One record. `microseconds` since boot; `level` is that of syslog, 3 for errors; facility 0 is the kernel."""

    sequence: int
    microseconds: int
    text: str
    level: int = ERROR
    facility: int = 0

    def line(self) -> bytes:
        """As a reader of /dev/kmsg gets it, with its newline."""
        priority = self.facility * _LEVELS + self.level
        return b"%d,%d,%d,-;%s\n" % (priority, self.sequence, self.microseconds, _escaped(self.text))


def parsed(line: bytes) -> KernelRecord | None:
    """The record that begins with this line; None for a variable of the one before, and for what is none."""
    head, separator, text = line.rstrip(b"\n").partition(b";")
    fields = head.split(b",")
    if not separator or len(fields) < 3 or not all(field.isdigit() and len(field) <= 20 for field in fields[:3]):
        return None
    priority, sequence, microseconds = map(int, fields[:3])
    if max(priority, sequence, microseconds) > _LARGEST:
        return None
    facility, level = divmod(priority, _LEVELS)
    return KernelRecord(sequence, microseconds, _unescaped(text), level, facility)


def _escaped(text: str) -> bytes:
    return b"".join(
        b"%c" % byte if 32 <= byte < 127 and byte != ord("\\") else b"\\x%02x" % byte
        for byte in text.encode("utf-8", "replace")
    )


def _unescaped(text: bytes) -> str:
    return _ESCAPED.sub(lambda match: bytes((int(match[1], 16),)), text).decode("utf-8", "replace")
