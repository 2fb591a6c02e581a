"""Formats quantities, times and index ranges for people."""

from __future__ import annotations

from time import localtime, strftime

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from collections.abc import Iterable


UNKNOWN = "-"
"""What a quantity that is not known prints as; never 0."""

_INFINITE = float("inf")
_BINARY_UNITS = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
_FLOPS_UNITS = ("FLOPS", "KFLOPS", "MFLOPS", "GFLOPS", "TFLOPS", "PFLOPS", "EFLOPS")
_COUNT_UNITS = ("", "K", "M", "G", "T", "P", "E")
_LATENCY_UNITS = ("ns", "us", "ms", "s")
_CLOCK_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def _scaled(value: float, step: int, units: tuple[str, ...]) -> tuple[float, str]:
    """Divide until the text with one decimal stays below one `step`, so that 1023.99 KB becomes 1.0 MB."""
    power = 0
    while power < len(units) - 1 and round(abs(value), 1 if power else 0) >= step:
        value /= step
        power += 1
    return value, units[power]


def bytes_text(size_bytes: int | None) -> str:
    """Bytes in use: "0", "512 B", "1.5 KB", "8.2 GB". Steps are of 1024: GB means GiB, as in the original tools."""
    if size_bytes is None:
        return UNKNOWN
    if size_bytes == 0:
        return "0"
    value, unit = _scaled(size_bytes, 1024, _BINARY_UNITS)
    return f"{size_bytes} B" if unit == "B" else f"{value:.1f} {unit}"


def short_bytes_text(size_bytes: int | None) -> str:
    """The same for a narrow cell, in at most 7 characters: "512", "1.5K", "8.2G"."""
    return bytes_text(size_bytes).replace(" ", "").replace("B", "") if size_bytes else bytes_text(size_bytes)


def memory_size_text(size_bytes: int | None) -> str:
    """The size of a memory: as `bytes_text`, but a whole number has no decimals: "32 GB", "96 GB", "1.5 TB"."""
    return bytes_text(size_bytes).replace(".0 ", " ")


def byte_rate_text(bytes_per_second: float | None) -> str:
    """Bytes a second, as `bytes_text`: "8.2 GB/s", "0/s"."""
    if bytes_per_second is None or not _is_finite(bytes_per_second):
        return UNKNOWN
    return f"{bytes_text(int(bytes_per_second))}/s"


def _is_finite(value: float) -> bool:
    return abs(value) < _INFINITE  # false for NaN too


def percent_text(ratio: float | None, decimals: int = 2) -> str:
    """A ratio as percent: 0.5681 is "56.81%"."""
    if ratio is None or not _is_finite(ratio):
        return UNKNOWN
    return f"{ratio * 100:.{decimals}f}%"


def flops_text(flops_per_second: float | None) -> str:
    """Floating-point operations per second, in steps of 1000: "12.3 TFLOPS"; "0 FLOPS" when idle."""
    if flops_per_second is None or not _is_finite(flops_per_second):
        return UNKNOWN
    value, unit = _scaled(flops_per_second, 1000, _FLOPS_UNITS)
    return f"{value:.0f} {unit}" if unit == "FLOPS" else f"{value:.1f} {unit}"


def short_flops_text(flops_per_second: float | None, decimals: int = 2) -> str:
    """The same for a narrow cell, in at most 7 characters: "12.30T", "4.20G", "0" when idle."""
    if flops_per_second is None or not _is_finite(flops_per_second):
        return UNKNOWN
    value, unit = _scaled(flops_per_second, 1000, _FLOPS_UNITS)
    return f"{value:.0f}" if unit == "FLOPS" else f"{value:.{decimals}f}{unit[0]}"


def duration_text(seconds: float | None) -> str:
    """A latency or an age: "850.0 us", "1.2 ms", "12.3 s"; from a minute on, two whole units: "2 m 5 s", "3 d 4 h"."""
    if seconds is None or not _is_finite(seconds):
        return UNKNOWN
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    if seconds == 0:
        return "0 s"
    if round(seconds, 1) >= 60:
        whole = max(int(seconds), 60)
        for unit_seconds, unit, part_seconds, part in _CLOCK_UNITS:
            if whole >= unit_seconds:
                return f"{whole // unit_seconds} {unit} {whole % unit_seconds // part_seconds} {part}"
    value, unit = _scaled(seconds * 1e9, 1000, _LATENCY_UNITS)
    return f"{value:.0f} {unit}" if unit == "ns" else f"{value:.1f} {unit}"


def short_duration_text(seconds: float | None) -> str:
    """The same for a narrow cell, in at most 7 characters: "1.2ms", "12.3s"; from a minute on, the first unit: "3d"."""
    text = duration_text(seconds)
    return (text.rsplit(" ", 2)[0] if seconds is not None and seconds >= 60 else text).replace(" ", "")


def count_text(count: int | None) -> str:
    """A count with thousands: "1,234,567"."""
    return UNKNOWN if count is None else f"{count:,}"


def short_count_text(count: int | None, cells: int = 8) -> str:
    """The same for a cell of at least 5: "12,345" where that fits, else "12.3K", "123K", "1.0M"."""
    text = count_text(count)
    if count is None or len(text) <= cells:
        return text
    value, unit = _scaled(count, 1000, _COUNT_UNITS)
    text = f"{value:.1f}{unit}"
    return text if len(text) <= cells else f"{value:.0f}{unit}"


def rate_text(per_second: float | None) -> str:
    """How often something happens in a second, without a unit: "2.4", "1234.5"."""
    return UNKNOWN if per_second is None or not _is_finite(per_second) else f"{per_second:.1f}"


def short_rate_text(per_second: float | None, cells: int) -> str:
    """The same for a cell of at least 5; where that doesn't fit, as `short_count_text`: "123,457", "1.2M"."""
    text = rate_text(per_second)
    if per_second is None or len(text) <= cells:
        return text
    return short_count_text(round(per_second), cells)


def counted(count: int, noun: str) -> str:
    """A number of things: "1 step", "2,000 steps"."""
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def ranges_text(indices: Iterable[int]) -> str:
    """Indices as people write them: "0-3,8"."""
    parts: list[str] = []
    start = previous = None
    for index in [*sorted(set(indices)), None]:
        if previous is not None and index == previous + 1:
            previous = index
            continue
        if start is not None:
            parts.append(f"{start}" if start == previous else f"{start}-{previous}")
        start = previous = index
    return ",".join(parts)


def clock_text(unix_seconds: float) -> str:
    """The time of day, where the day goes without saying."""
    return strftime("%H:%M:%S", localtime(unix_seconds))


def day_text(unix_seconds: float) -> str:
    """Month, day and time of day, where there is no room for the year."""
    return strftime("%m-%d %H:%M:%S", localtime(unix_seconds))


def date_text(unix_seconds: float) -> str:
    """Year, month, day and time of day."""
    return strftime("%Y-%m-%d %H:%M:%S", localtime(unix_seconds))


def rfc3339_text(unix_seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds; ValueError, OverflowError or OSError for what no calendar shows."""
    from datetime import UTC, datetime  # slow to import, and few commands write timestamps

    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def optional_rfc3339_text(unix_seconds: float | None) -> str | None:
    """The same; None for an unknown moment."""
    return None if unix_seconds is None else rfc3339_text(unix_seconds)


def strip_durations(text: str, instead: str = "") -> str:
    """The text with other words in place of each number of seconds."""
    import re  # slow to import, and only the daemon compares sentences

    return re.sub(r"\b\d+(\.\d+)? s\b", instead, text)
