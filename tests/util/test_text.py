"""Quantities as people read them, what reaches a terminal, and what of a command line and an environment is shown."""

from __future__ import annotations

import math
import re
import sys
import time
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from neurontools.util.process_text import HIDDEN, script_name, script_text, shown_value
from neurontools.util.terminal import cell_width, escape_controls, split_clusters, truncate
from neurontools.util.units import (
    byte_rate_text,
    bytes_text,
    clock_text,
    count_text,
    date_text,
    day_text,
    devices_text,
    duration_text,
    flops_text,
    memory_size_text,
    percent_text,
    rate_text,
    short_count_text,
    short_rate_text,
)
from neurontools.views.drawing.lines import clip, printable
from tests.harness.waiting import run_to_end

ANY_TEXT = st.text(st.characters(codec=None, categories=None) | st.characters(max_codepoint=0xA0))
ANY_CODE_POINT = st.integers(min_value=0, max_value=0x10FFFF).map(chr)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("python train.py --lr 1e-4", "python train.py --lr 1e-4"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("\x00\t\n\r\x7f", r"\x00\x09\x0a\x0d\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("abc\u202egpj.exe", r"abc\u202egpj.exe"),
        ("\u2066\u2069\u200f\u061c", r"\u2066\u2069\u200f\u061c"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\udc80", r"\udc80"),
        ("größe 模型 \u00a0 🚀", "größe 模型 \u00a0 🚀"),
        (r"C:\x1b", r"C:\x1b"),
    ],
)
def test_visible(raw: str, shown: str) -> None:
    assert escape_controls(raw) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [("👩‍👩‍👧‍👦 a ❤️ é", "👩 a ❤ é"), ("🇩🇪1️⃣👍🏽", "DE1👍"), ("模型", "模型")],
)
def test_the_dashboard_shows_what_every_terminal_draws_in_one_width(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(ANY_TEXT)
def test_visible_lets_nothing_raw_through(text: str) -> None:
    shown = escape_controls(text)
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cs", "Zl", "Zp"}
    # The explicit direction controls; Unicode classes the three marks with the letters.
    directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not {unicodedata.bidirectional(character) for character in shown} & directions
    shown.encode()  # a lone surrogate would fail
    assert escape_controls(shown) == shown


def test_cut() -> None:
    expected = {15: "python train.py", 14: "python trai...", 3: "...", 2: "..", 0: "", -1: ""}
    assert {width: truncate("python train.py", width) for width in expected} == expected
    assert truncate("", 0) == ""


@given(st.text(), st.integers(min_value=0, max_value=50))
def test_cut_fits_and_keeps_the_start(text: str, width: int) -> None:
    result = truncate(text, width)
    assert len(result) <= width
    assert result == text or (result.endswith("..."[:width]) and text.startswith(result[: max(width - 3, 0)]))


def test_cell_width() -> None:
    expected = {
        "": 0,
        "\x1b": 0,
        "e\u0301": 1,
        "ｗ": 2,
        "🚀": 2,
        "\u1112\u1161\u11ab": 2,
        "█▌": 2,
        "train.py": 8,
        "größe": 5,
        "模型": 4,
        "a\u200bb": 2,
        "a\u00adb": 3,
    }
    assert {text: cell_width(text) for text in expected} == expected


@pytest.mark.parametrize("cluster", ["👩‍💻", "👨‍👩‍👧", "❤️", "🇩🇪", "👍🏽", "1️⃣", "☎️", "e\u0301", "🚀"])
def test_the_width_of_a_cluster_is_that_of_the_dashboard(cluster: str) -> None:
    assert cell_width(f"a{cluster}b") == cell_len(f"a{cluster}b")
    assert clip(f"{cluster}{cluster}", cell_width(cluster)) == cluster


@given(st.text(), ANY_CODE_POINT)
def test_cell_width_adds_up_and_no_cluster_is_wider_than_two(text: str, character: str) -> None:
    clusters = split_clusters(text)
    assert "".join(clusters) == text
    assert cell_width(text) == sum(map(cell_width, clusters))
    assert cell_width(character) in (0, 1, 2)


SCRIPTS = {
    "/opt/venv/bin/python3 -u /home/me/train.py --lr 0.1": "train.py --lr 0.1",
    "/venv/bin/python -u -m neurontools.runtime /home/me/train.py --lr 0.1": "train.py --lr 0.1",
    "python3 -m neurontools.runtime -m package.train --lr 0.1": "package.train --lr 0.1",
    "python3.11 -X dev -W error -B train.py": "train.py",
    "python3 -m torch.distributed.run --nproc_per_node 2 t.py": "torch.distributed.run --nproc_per_node 2 t.py",
    "python -c import time; time.sleep(9)": "-c import time; time.sleep(9)",
    "/usr/bin/pypy3 serve.py": "serve.py",
    "/opt/bin/server --port 8000 --model /models/llama": "server --port 8000 --model /models/llama",
    "pythonic /etc/hosts": "pythonic /etc/hosts",
    "/usr/bin/python3": "python3",
    "python3 -m": "python3",
    "[synthetic load steady] rank 0 of 32": "[synthetic load steady] rank 0 of 32",
    "": "",
    "   ": "",
    "/": "/",
}


def test_the_script_is_shown_without_what_starts_it() -> None:
    assert {command: script_text(command) for command in SCRIPTS} == SCRIPTS
    names = {
        "python -u /a/b.py --lr 1": "b.py",
        "python -c import": "python -c",
        "python -m a.b x": "a.b",
        "/bin/x": "x",
    }
    assert {command: script_name(command.split()) for command in names} == names
    assert script_name(["python", "/a/b c.py"]) == "b c.py", "arguments keep their spaces"
    assert [script_name(arguments) for arguments in ([], [""], ["python", ""], ["python3"])] == [
        "",
        "",
        "python",
        "python3",
    ]
    assert len(script_text("python3 train.py " + "x" * 10_000_000)) < 5000, "one without end costs nothing"


NAMES = (
    "HF_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN PGPASSWORD db_password MYSQL_PWD "
    "SSH_KEY_PASSPHRASE GOOGLE_APPLICATION_CREDENTIALS SENTRY_DSN AZURE_STORAGE_CONNECTION_STRING SLACK_WEBHOOK "
    "GITHUB_PAT HTTP_AUTHORIZATION COOKIE"
).split()
VALUES = [
    *("AKIAIOSFODNN7EXAMPLE", "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "github_pat_11ABC", "sk-proj-abcdefghijkl"),
    *("hf_abcdefghijklmnopqrstuvwxyz", "xoxb-123", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "Bearer abc"),
    *("-----BEGIN PRIVATE KEY-----", "postgres://user:hunter2@db/train", "--endpoint x --api-key=abc"),
    *("wJalrXUtnFEMI/K7MDENGbPxRfiCYEXAMPLEKEY", "0123456789abcdef0123456789abcdef", '{"token": "x"}'),
    "https://s3.example.org/a?X-Amz-Signature=0123",
]
SHOWN = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/bin",
    "PWD": "/home/me/project-2026-11-22/run_0001",
    "SSH_AUTH_SOCK": "/run/user/1000/keyring/ssh",
    "NEURON_RT_VISIBLE_CORES": "0-31",
    "NEURON_CC_FLAGS": "--model-type=transformer --distribution-strategy=llm-training -O1",
    "PYTHONPATH": "/opt/aws/neuronx/lib/python3.10/site-packages",
    "TORCHELASTIC_RUN_ID": "none",
    "MASTER_ADDR": "ip-10-0-0-12.us-east-1.compute.internal",
    "KEYBOARD": "us",
    "MONKEY": "business",
    "EMPTY_TOKEN": "",
}


def test_a_name_that_says_so_or_a_value_that_looks_like_one_is_enough() -> None:
    assert {name: shown_value(name, "x") for name in NAMES} == dict.fromkeys(NAMES, HIDDEN)
    assert {value: shown_value("SOMETHING", value) for value in VALUES} == dict.fromkeys(VALUES, HIDDEN)


def test_what_people_look_for_is_shown() -> None:
    assert {name: shown_value(name, value) for name, value in SHOWN.items()} == SHOWN


@given(st.text(max_size=200), st.text(max_size=2000))
def test_any_text_is_shown_or_hidden(name: str, value: str) -> None:
    assert shown_value(name, value) in (value, HIDDEN)


NEW_YEAR_1970 = 0.0


@pytest.mark.parametrize(
    ("zone", "clock", "date"), [("UTC", "00:00:00", "1970-01-01"), ("XYZ+1:30", "22:30:00", "1969-12-31")]
)
def test_a_moment_is_told_by_the_local_clock(monkeypatch: pytest.MonkeyPatch, zone: str, clock: str, date: str) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        assert clock_text(NEW_YEAR_1970) == clock
        assert day_text(NEW_YEAR_1970) == f"{date[5:]} {clock}"
        assert date_text(NEW_YEAR_1970) == f"{date} {clock}"
    time.tzset()


KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40


TEXTS: dict[Callable[..., str], dict[object, str]] = {
    bytes_text: {
        None: "-", 0: "0", 1: "1 B", 512: "512 B", 1023: "1023 B", KIB: "1.0 KB", 1536: "1.5 KB", MIB - 1: "1.0 MB",
        int(8.2 * GIB): "8.2 GB", 32 * GIB: "32.0 GB", 1536 * GIB: "1.5 TB", -2048: "-2.0 KB",
    },
    memory_size_text: {
        None: "-", 8 * GIB: "8 GB", 32 * GIB: "32 GB", 96 * GIB: "96 GB", TIB + TIB // 2: "1.5 TB", 0: "0",
    },
    byte_rate_text: {None: "-", math.nan: "-", math.inf: "-", 0.0: "0/s", 0.4: "0/s", 1536.9: "1.5 KB/s"},
    percent_text: {None: "-", math.nan: "-", math.inf: "-", 0.0: "0.00%", 0.5681: "56.81%", 1.0: "100.00%"},
    flops_text: {
        None: "-", math.nan: "-", 0.0: "0 FLOPS", 999.0: "999 FLOPS", 12.3e12: "12.3 TFLOPS", 999.96e9: "1.0 TFLOPS",
        3.4e15: "3.4 PFLOPS", 5e21: "5000.0 EFLOPS",
    },
    duration_text: {
        None: "-", math.nan: "-", 0: "0 s", 3e-9: "3 ns", 850e-6: "850.0 us", 960e-6: "960.0 us", 0.0012: "1.2 ms",
        0.99999: "1.0 s", 12.34: "12.3 s", 59.96: "1 m 0 s", 125.9: "2 m 5 s", 3600: "1 h 0 m", 86_399: "23 h 59 m",
        3 * 86_400 + 4 * 3600 + 59: "3 d 4 h", -0.0012: "-1.2 ms",
    },
    count_text: {None: "-", 0: "0", 999: "999", 1234567: "1,234,567"},
    rate_text: {None: "-", math.nan: "-", math.inf: "-", 0.0: "0.0", 2.44: "2.4", 1e6: "1000000.0"},
}  # fmt: skip


@pytest.mark.parametrize("text_of", TEXTS, ids=lambda function: function.__name__)
def test_quantities(text_of: Callable[..., str]) -> None:
    assert {value: text_of(value) for value in TEXTS[text_of]} == TEXTS[text_of]


def test_devices_are_listed_as_ranges() -> None:
    texts = {(): "no devices", (3,): "device 3", range(16): "devices 0-15", (0, 1, 2, 4): "devices 0-2,4"}
    for indices, text in texts.items():
        assert devices_text(indices) == text


def test_percent_without_decimals() -> None:
    assert percent_text(0.5681, decimals=0) == "57%"


IN_CELLS: dict[Callable[..., str], dict[tuple[float | None, int], str]] = {
    short_count_text: {
        (None, 8): "-", (0, 5): "0", (999_999, 8): "999,999", (1_000_000, 8): "1.0M", (999_999_999, 8): "1.0G",
        (9_999, 5): "9,999", (12_345, 5): "12.3K", (123_456, 5): "123K", (2**64 - 1, 5): "18.4E",
    },
    short_rate_text: {
        (None, 7): "-", (math.nan, 7): "-", (math.inf, 7): "-", (0.0, 7): "0.0", (99_999.94, 7): "99999.9",
        (99_999.96, 7): "100,000", (123_456.7, 7): "123,457", (999_999.6, 7): "1.0M", (12_345.6, 5): "12.3K",
    },
}  # fmt: skip


@pytest.mark.parametrize("text_of", IN_CELLS, ids=lambda function: function.__name__)
def test_in_a_cell_fewer_digits_are_told_and_not_a_part_of_them(text_of: Callable[..., str]) -> None:
    assert {given: text_of(*given) for given in IN_CELLS[text_of]} == IN_CELLS[text_of]
    assert all(len(text) <= cells for (_, cells), text in IN_CELLS[text_of].items())


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
        "import sys; before = set(sys.modules); import neurontools.util.units, neurontools.util.terminal;"
        "print(*sorted(set(sys.modules) - before))"
    )
    run = run_to_end([sys.executable, "-c", code], check=True)
    own = {"neurontools", "neurontools.util", "neurontools.util.units", "neurontools.util.terminal"}
    assert set(run.stdout.split()) - own <= {"__future__", "math", "unicodedata"}
