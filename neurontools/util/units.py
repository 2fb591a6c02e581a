"""Adds and averages quantities of which some are unknown, and formats quantities for people.

A formatting function takes a value in its base unit: bytes, seconds, FLOPS, or a ratio from 0 to 1. It returns "-" for
an unknown value: None, NaN or infinity. This module imports only `time`, so that short commands start fast.
"""

from __future__ import annotations

from time import localtime, strftime

TYPE_CHECKING = False  # defined here, because importing it from `typing` takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    Number = TypeVar("Number", int, float)

UNKNOWN = "-"
"""Text that stands for an unknown quantity, which is never shown as 0."""

_INFINITE = float("inf")
_AWS_UNITS = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_FLOPS_UNITS = ("FLOPS", "KFLOPS", "MFLOPS", "GFLOPS", "TFLOPS", "PFLOPS", "EFLOPS")
_COUNT_UNITS = ("", "K", "M", "G", "T", "P", "E")
_LATENCY_UNITS = ("ns", "us", "ms", "s")
_CLOCK_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def sum_known(values: Iterable[Number | None]) -> Number | None:
    """Returns the sum of the values that are not None. None if all are None, or if a count exceeds 64 bits."""
    known_values = [value for value in values if value is not None]
    total = sum(known_values) if known_values else None
    return None if isinstance(total, int) and total >= 2**64 else total


def max_known(values: Iterable[Number | None]) -> Number | None:
    """Returns the highest of the values that are not None; None if all are None."""
    return max((value for value in values if value is not None), default=None)


def mean_known(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are not None; None if all are None."""
    known_values = [value for value in values if value is not None]
    return sum(known_values) / len(known_values) if known_values else None


def _scaled(value: float, step: int, units: tuple[str, ...]) -> tuple[float, str]:
    """Converts a value to the largest unit in which it is at least 1, after rounding: 1023.99 KB becomes 1.0 MB."""
    power = 0
    while power < len(units) - 1 and round(abs(value), 1 if power else 0) >= step:
        value /= step
        power += 1
    return value, units[power]


def bytes_text(size_bytes: int | None) -> str:
    """Formats bytes: "0", "512 B", "1.5 KB", "8.2 GB". One GB is 1024**3 bytes, as in the tools of AWS.

    Outputs that have no counterpart there use `iec_bytes_text`.
    """
    return _bytes_text(size_bytes, _AWS_UNITS)


def iec_bytes_text(size_bytes: int | None) -> str:
    """Formats bytes with IEC prefixes: "0", "512 B", "1.5 KiB", "8.2 GiB"."""
    return _bytes_text(size_bytes, _BINARY_UNITS)


def _bytes_text(size_bytes: int | None, units: tuple[str, ...]) -> str:
    if size_bytes is None:
        return UNKNOWN
    if size_bytes == 0:
        return "0"
    if -1024 < size_bytes < 1024:
        return f"{size_bytes} B"
    # The same as `_scaled`, without a division for each unit: a live view formats dozens of sizes a second.
    power = min((size_bytes.bit_length() - 1) // 10, len(units) - 1)
    value = size_bytes / (1 << 10 * power)
    if power < len(units) - 1 and round(abs(value), 1) >= 1024:
        value, power = value / 1024, power + 1
    return f"{value:.1f} {units[power]}"


def short_bytes_text(size_bytes: int | None) -> str:
    """Formats bytes in at most 7 characters: "512", "1.5K", "8.2G"."""
    return bytes_text(size_bytes).replace(" ", "").replace("B", "") if size_bytes else bytes_text(size_bytes)


def memory_size_text(size_bytes: int | None) -> str:
    """Formats a memory size like `bytes_text`, but whole numbers without decimals: "32 GB", "1.5 TB"."""
    return bytes_text(size_bytes).replace(".0 ", " ")


def byte_rate_text(bytes_per_second: float | None) -> str:
    """Formats bytes per second: "8.2 GB/s", "0/s"."""
    if bytes_per_second is None or not _is_finite(bytes_per_second):
        return UNKNOWN
    return f"{bytes_text(int(bytes_per_second))}/s"


def _is_finite(value: float) -> bool:
    return abs(value) < _INFINITE  # also false for NaN


def percent_text(ratio: float | None, decimals: int = 2) -> str:
    """Formats a ratio as percent: 0.5681 is "56.81%"."""
    if ratio is None or not _is_finite(ratio):
        return UNKNOWN
    return f"{ratio * 100:.{decimals}f}%"


def flops_text(flops_per_second: float | None) -> str:
    """Formats FLOPS with decimal prefixes: "12.3 TFLOPS", "0 FLOPS"."""
    if flops_per_second is None or not _is_finite(flops_per_second):
        return UNKNOWN
    value, unit = _scaled(flops_per_second, 1000, _FLOPS_UNITS)
    return f"{value:.0f} {unit}" if unit == "FLOPS" else f"{value:.1f} {unit}"


def short_flops_text(flops_per_second: float | None, decimals: int = 2) -> str:
    """Formats FLOPS in at most 7 characters: "12.30T", "4.20G", "0"."""
    if flops_per_second is None or not _is_finite(flops_per_second):
        return UNKNOWN
    value, unit = _scaled(flops_per_second, 1000, _FLOPS_UNITS)
    return f"{value:.0f}" if unit == "FLOPS" else f"{value:.{decimals}f}{unit[0]}"


def duration_text(seconds: float | None) -> str:
    """Formats a latency or an age: "850.0 us", "12.3 s". From one minute on, uses two units: "2 m 5 s", "3 d 4 h"."""
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
    """Formats a duration in at most 7 characters: "1.2ms", "12.3s". From one minute on, uses one unit: "3d"."""
    text = duration_text(seconds)
    return (text.rsplit(" ", 2)[0] if seconds is not None and seconds >= 60 else text).replace(" ", "")


def count_text(count: int | None) -> str:
    """Formats a count with thousands separators: "1,234,567"."""
    return UNKNOWN if count is None else f"{count:,}"


def short_count_text(count: int | None, cells: int = 8) -> str:
    """Formats a count for a table cell of at least 5 characters: "12,345" if it fits, else "12.3K", "123K", "1.0M"."""
    text = count_text(count)
    if count is None or len(text) <= cells:
        return text
    value, unit = _scaled(count, 1000, _COUNT_UNITS)
    text = f"{value:.1f}{unit}"
    return text if len(text) <= cells else f"{value:.0f}{unit}"


def rate_text(per_second: float | None) -> str:
    """Formats a rate per second, without a unit: "2.4", "1234.5"."""
    return UNKNOWN if per_second is None or not _is_finite(per_second) else f"{per_second:.1f}"


def short_rate_text(per_second: float | None, cells: int) -> str:
    """Formats a rate per second for a cell of at least 5 characters: "1234.5" if it fits, else "123,457", "1.2M"."""
    text = rate_text(per_second)
    if per_second is None or len(text) <= cells:
        return text
    return short_count_text(round(per_second), cells)


def counted(count: int, noun: str) -> str:
    """Formats a count with its noun: "1 step", "2,000 steps"."""
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def ranges_text(indices: Iterable[int]) -> str:
    """Formats indices as a list of ranges, in ascending order: "0-3,8"."""
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


def devices_text(indices: Iterable[int]) -> str:
    """Formats device indices: "device 3", "devices 0-2,5", "no devices"."""
    unique = set(indices)
    return f"device{'' if len(unique) == 1 else 's'} {ranges_text(unique)}" if unique else "no devices"


def clock_text(unix_seconds: float) -> str:
    """Formats a Unix time as the local time of day: "14:03:59"."""
    return strftime("%H:%M:%S", localtime(unix_seconds))


def day_text(unix_seconds: float) -> str:
    """Formats a Unix time as local month, day and time of day: "05-31 14:03:59"."""
    return strftime("%m-%d %H:%M:%S", localtime(unix_seconds))


def date_text(unix_seconds: float) -> str:
    """Formats a Unix time as local date and time of day: "2026-05-31 14:03:59"."""
    return strftime("%Y-%m-%d %H:%M:%S", localtime(unix_seconds))


def rfc3339_text(unix_seconds: float) -> str:
    """Formats a Unix time as RFC 3339 in UTC with milliseconds.

    Raises ValueError, OverflowError or OSError for a time outside the range of dates.
    """
    from datetime import UTC, datetime  # a slow import, for the few commands that write timestamps

    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def optional_rfc3339_text(unix_seconds: float | None) -> str | None:
    return None if unix_seconds is None else rfc3339_text(unix_seconds)


def strip_durations(text: str, instead: str = "") -> str:
    """Replaces each number of seconds in a text, so that texts which differ only in durations compare equal."""
    import re  # a slow import, which most commands do not need

    return re.sub(r"\b\d+(\.\d+)? s\b", instead, text)
