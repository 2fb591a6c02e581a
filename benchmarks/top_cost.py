"""What neuron-top costs, measured from outside, beside other full-screen monitors that are installed.

    python benchmarks/top_cost.py [--seconds 30] [--instance-type trn1.32xlarge]

Each program gets a fresh 200x50 terminal whose queries are answered, and is left alone. CPU time is that of its process
clock; memory its high-water mark; the first frame is the moment from which 80 % of the cells of the last screen are
filled.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS, LINES, WARM_UP_SECONDS = 200, 50, 5.0
QUERIES = (
    (re.compile(rb"\x1b\[0?c"), b"\x1b[?62;22c"),
    (re.compile(rb"\x1b\[6n"), b"\x1b[1;1R"),
    (re.compile(rb"\x1b\[\?2026\$p"), b"\x1b[?2026;2$y"),
    (re.compile(rb"\x1b\]11;\?(\x07|\x1b\\)"), b"\x1b]11;rgb:0000/0000/0000\x1b\\"),
)
SEQUENCE = re.compile(
    r"\x1b(?:\[([0-?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[@-Z\\-_=>78])"
)


@dataclass(frozen=True)
class Cost:
    cpu_seconds: float
    steady_ratio: float
    high_water_bytes: int
    bytes_per_second: float
    first_frame_seconds: float
    key_seconds: float | None


def cpu_seconds(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)


def high_water_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def filled(text: str) -> int:
    """Cells that hold something after all this was written."""
    cells: set[tuple[int, int]] = set()
    row = column = position = 0
    while position < len(text):
        if text[position] == "\x1b":
            match = SEQUENCE.match(text, position)
            if match is None:
                position += 1
                continue
            if match[2] == "H":
                numbers = [int(part or 1) for part in (match[1] or "1;1").split(";")]
                row, column = numbers[0] - 1, (numbers[1] if len(numbers) > 1 else 1) - 1
            elif match[2] == "J":
                cells.clear()
            position = match.end()
            continue
        if text[position] > " ":
            cells.add((row, column))
        elif text[position] == " ":
            cells.discard((row, column))
        if text[position] == "\n":
            row, column = row + 1, 0
        elif text[position] == "\r":
            column = 0
        else:
            column += 1
        position += 1
    return len(cells)


def measure(command: list[str], seconds: float, key: str | None) -> Cost:
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
    with tempfile.TemporaryDirectory() as home:
        environment["XDG_CONFIG_HOME"] = home
        started = time.monotonic()
        pid, terminal = pty.fork()
        if not pid:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
            os.execvpe(command[0], command, environment)
        parts: list[tuple[float, bytes]] = []

        def read(until: float) -> bool:
            """Read for a while; whether anything came."""
            if not select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0]:
                return False
            data = os.read(terminal, 1 << 16)
            parts.append((time.monotonic() - started, data))
            for query, answer in QUERIES:
                if query.search(data):
                    os.write(terminal, answer)
            return True

        try:
            while time.monotonic() < started + WARM_UP_SECONDS:
                read(started + WARM_UP_SECONDS)
            warm_cpu, warm_bytes = cpu_seconds(pid), sum(len(data) for _, data in parts)
            while time.monotonic() < started + seconds:
                read(started + seconds)
            cpu, written = cpu_seconds(pid), sum(len(data) for _, data in parts)
            memory = high_water_bytes(pid)
            answers = []
            for number in range(10 if key else 0):
                pause = time.monotonic() + 0.3 + number * 0.037
                while time.monotonic() < pause:
                    read(pause)
                sent = time.monotonic()
                os.write(terminal, (key or "").encode())
                if read(sent + 2):
                    answers.append(time.monotonic() - sent)
        finally:
            os.kill(pid, signal.SIGTERM)
            time.sleep(0.2)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(terminal)
        text = b""
        target = 0.8 * filled(b"".join(data for at, data in parts if at < seconds).decode("utf-8", "ignore"))
        first = seconds
        for at, data in parts:
            text += data
            if filled(text.decode("utf-8", "ignore")) >= target:
                first = at
                break
        steady = seconds - WARM_UP_SECONDS
        return Cost(
            cpu,
            (cpu - warm_cpu) / steady,
            memory,
            (written - warm_bytes) / steady,
            first,
            statistics.median(answers) if answers else None,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--instance-type", default="trn1.32xlarge")
    parser.add_argument("--lnc", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nt-") as directory:
        socket = f"{directory}/n.sock"
        ready, tell = os.pipe()
        flags = ["--simulate", options.instance_type, "--load", "steady", "--socket", socket, "--exit-with-parent"]
        flags += ["--lnc", options.lnc] if options.lnc else []
        daemon = subprocess.Popen(
            [sys.executable, "-m", "neurond", *flags, "--ready-fd", str(tell)],
            pass_fds=(tell,),
            stderr=subprocess.DEVNULL,
        )
        os.read(ready, 16)
        programs = {
            "neuron-top": (
                [sys.executable, str(ROOT / "scripts/neuron-top"), "--socket", socket],
                "\r",
            ),  # unfolds and folds a job
            "btop": (["btop"], None),
            "htop": (["htop"], "\x1bOB"),
            "nvitop": (["nvitop"], None),
        }
        print(f"{'program':12} {'CPU s':>7} {'steady':>8} {'MiB':>6} {'kB/s':>6} {'first s':>8} {'key ms':>7}")
        try:
            for name, (command, key) in programs.items():
                if shutil.which(command[0]) is None:
                    print(f"{name:12} not installed")
                    continue
                cost = measure(command, options.seconds, key)
                key_text = "-" if cost.key_seconds is None else f"{cost.key_seconds * 1e3:.1f}"
                print(
                    f"{name:12} {cost.cpu_seconds:7.2f} {cost.steady_ratio:8.2%} {cost.high_water_bytes / 2**20:6.1f} "
                    f"{cost.bytes_per_second / 1e3:6.1f} {cost.first_frame_seconds:8.3f} {key_text:>7}"
                )
        finally:
            daemon.terminate()
            daemon.wait()


if __name__ == "__main__":
    main()
