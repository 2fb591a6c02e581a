"""Quantities as people read them."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.text.units import (
    byte_rate_text,
    bytes_text,
    count_text,
    duration_text,
    flops_text,
    memory_size_text,
    percent_text,
    rate_text,
    short_count_text,
    short_rate_text,
)

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (None, "-"),
        (0, "0"),
        (1, "1 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (KIB, "1.0 KB"),
        (1536, "1.5 KB"),
        (MIB - 1, "1.0 MB"),
        (int(8.2 * GIB), "8.2 GB"),
        (32 * GIB, "32.0 GB"),
        (1536 * GIB, "1.5 TB"),
        (-2048, "-2.0 KB"),
    ],
)
def test_bytes(size_bytes: int | None, text: str) -> None:
    assert bytes_text(size_bytes) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(None, "-"), (8 * GIB, "8 GB"), (32 * GIB, "32 GB"), (96 * GIB, "96 GB"), (TIB + TIB // 2, "1.5 TB"), (0, "0")],
)
def test_memory_size(size_bytes: int | None, text: str) -> None:
    assert memory_size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("bytes_per_second", "text"),
    [(None, "-"), (math.nan, "-"), (math.inf, "-"), (0.0, "0/s"), (0.4, "0/s"), (1536.9, "1.5 KB/s")],
)
def test_byte_rate(bytes_per_second: float | None, text: str) -> None:
    assert byte_rate_text(bytes_per_second) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(None, "-"), (math.nan, "-"), (math.inf, "-"), (0.0, "0.00%"), (0.5681, "56.81%"), (1.0, "100.00%")],
)
def test_percent(ratio: float | None, text: str) -> None:
    assert percent_text(ratio) == text


def test_percent_without_decimals() -> None:
    assert percent_text(0.5681, decimals=0) == "57%"


@pytest.mark.parametrize(
    ("flops_per_second", "text"),
    [
        (None, "-"),
        (math.nan, "-"),
        (0.0, "0 FLOPS"),
        (999.0, "999 FLOPS"),
        (12.3e12, "12.3 TFLOPS"),
        (999.96e9, "1.0 TFLOPS"),
        (3.4e15, "3.4 PFLOPS"),
        (5e21, "5000.0 EFLOPS"),
    ],
)
def test_flops(flops_per_second: float | None, text: str) -> None:
    assert flops_text(flops_per_second) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (math.nan, "-"),
        (0, "0 s"),
        (3e-9, "3 ns"),
        (850e-6, "850.0 us"),
        (960e-6, "960.0 us"),
        (0.0012, "1.2 ms"),
        (0.99999, "1.0 s"),
        (12.34, "12.3 s"),
        (59.96, "1 m 0 s"),
        (125.9, "2 m 5 s"),
        (3600, "1 h 0 m"),
        (86_399, "23 h 59 m"),
        (3 * 86_400 + 4 * 3600 + 59, "3 d 4 h"),
        (-0.0012, "-1.2 ms"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(None, "-"), (0, "0"), (999, "999"), (1234567, "1,234,567")])
def test_count(count: int | None, text: str) -> None:
    assert count_text(count) == text


@pytest.mark.parametrize(
    ("count", "cells", "text"),
    [
        (None, 8, "-"),
        (0, 5, "0"),
        (999_999, 8, "999,999"),
        (1_000_000, 8, "1.0M"),
        (999_999_999, 8, "1.0G"),
        (9_999, 5, "9,999"),
        (12_345, 5, "12.3K"),
        (123_456, 5, "123K"),
        (2**64 - 1, 5, "18.4E"),
    ],
)
def test_count_for_a_cell_tells_fewer_digits_and_not_a_part_of_them(count: int | None, cells: int, text: str) -> None:
    assert short_count_text(count, cells) == text
    assert len(text) <= cells


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(None, "-"), (math.nan, "-"), (math.inf, "-"), (0.0, "0.0"), (2.44, "2.4"), (1e6, "1000000.0")],
)
def test_rate(per_second: float | None, text: str) -> None:
    assert rate_text(per_second) == text


@pytest.mark.parametrize(
    ("per_second", "cells", "text"),
    [
        (None, 7, "-"),
        (math.nan, 7, "-"),
        (math.inf, 7, "-"),
        (0.0, 7, "0.0"),
        (99_999.94, 7, "99999.9"),
        (99_999.96, 7, "100,000"),
        (123_456.7, 7, "123,457"),
        (999_999.6, 7, "1.0M"),
        (12_345.6, 5, "12.3K"),
    ],
)
def test_rate_for_a_cell_tells_fewer_digits_and_not_a_part_of_them(
    per_second: float | None, cells: int, text: str
) -> None:
    assert short_rate_text(per_second, cells) == text


@given(st.floats(min_value=0.0, max_value=2.0**64), st.integers(min_value=5, max_value=9))
def test_every_rate_fits_its_cell(per_second: float, cells: int) -> None:
    assert len(short_rate_text(per_second, cells)) <= cells


@given(st.integers(min_value=1, max_value=2**69))
def test_bytes_read_back_to_the_shown_precision(size_bytes: int) -> None:
    number, unit = bytes_text(size_bytes).split()
    scale = 1024 ** ["B", "KB", "MB", "GB", "TB", "PB", "EB"].index(unit)
    assert float(number) < 1024
    assert abs(float(number) * scale - size_bytes) <= 0.051 * scale


@given(st.floats(min_value=1e-9, max_value=59.9))
def test_latencies_stay_below_a_step_of_their_unit(seconds: float) -> None:
    match = re.fullmatch(r"([\d.]+) (ns|us|ms|s)", duration_text(seconds))
    assert match is not None
    scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]
    assert float(match[1]) < 1000
    assert float(match[1]) * scale == pytest.approx(seconds, rel=0.06, abs=0.51e-9)


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import neurontools.text.units, neurontools.text.terminal;"
        "print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = {"neurontools", "neurontools.text", "neurontools.text.units", "neurontools.text.terminal"}
    assert set(run.stdout.split()) - own <= {"__future__", "math", "unicodedata"}
