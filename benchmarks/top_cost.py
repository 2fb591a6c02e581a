"""Measures neuron-top from outside, beside other installed full-screen monitors.

    python benchmarks/top_cost.py [--seconds 30] [--instance-type trn1.32xlarge] [--lnc 1] [--only opening]

Each program gets a fresh 200x50 terminal and no keys. CPU time is that of its process clock, memory its high-water
mark. The first frame is the moment when 80 % of the cells of the screen after 5 s are filled. btop refreshes every 2 s
by itself, neuron-top every second; "btop at 1 s" has the interval of neuron-top. Then keys move the selection at random
moments, on a quiet host and beside five busy processes a vCPU. A program "echo" that only answers keys shows the
scheduler's part of the delay. The cost of opening is the CPU time until a program is quiet, above its steady use: with
no history, with 600 and with 3,600 past snapshots, of 32 processes and of 64 on 128 cores. Last, neuron-top backfills
from a daemon with more history than it keeps.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring import compile_sources, daemon
from measuring.terminal import Session, busy_vcpus, session

ROOT = Path(__file__).parents[1]
WARM_UP_SECONDS = 5.0
KEYS, BUSY_PROCESSES_PER_VCPU = 30, 5
PAST_INTERVAL_SECONDS, PAST_SECONDS, LONGEST_LOAD_SECONDS = 0.02, 60.0, 90.0
STEADY_SECONDS = 10.0
OPENING_INTERVAL_SECONDS = 0.05  # of a daemon that makes the past of an opening, faster than the usual second
LOADS = {
    "32 processes": ("--simulate", "trn1.32xlarge", "--load", "steady"),
    "64 processes on 128 cores": ("--simulate", "trn2.48xlarge", "--load", "steady"),
}
ECHO = """
import os, tty
tty.setraw(0)
os.write(1, b"ready")
while key := os.read(0, 64):
    os.write(1, b".")
"""


@dataclass(frozen=True)
class Program:
    """A command, the keys that make it ready, and the keys whose replies are timed."""

    name: str
    command: list[str]
    ready: str = ""
    keys: tuple[str, ...] = ()
    btop_settings: str = ""


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def programs(socket: str) -> list[Program]:
    top = [sys.executable, str(ROOT / "scripts/neuron-top"), "--socket", socket]
    down, up = ("\x1bOB", "\x1b[B"), ("\x1bOA", "\x1b[A")
    found = [
        Program("neuron-top", top, "\r", (down[1], up[1])),  # Enter unfolds the job
        Program("  unfolding", top, "", ("\r",)),
        Program("btop", ["btop"], "", (down[1], down[1], up[1])),
        Program("btop at 1 s", ["btop"], btop_settings="update_ms = 1000\n"),
        Program("htop", ["htop"], "", (down[0], up[0])),
        Program("nvitop", ["nvitop"]),
        Program("echo", [sys.executable, "-c", ECHO], "", ("x",)),
    ]
    return [program for program in found if shutil.which(program.command[0]) is not None]


def print_costs(shown: Sequence[Program], seconds: float) -> None:
    print(f"{'left alone':12} {'CPU s':>7} {'steady':>8} {'MiB':>6} {'kB/s':>6} {'first frame s':>13}")
    for program in shown:
        with session(program.command, program.btop_settings) as running:
            running.read_until(WARM_UP_SECONDS)
            warm_cpu, warm_bytes = running.cpu_seconds, running.written_bytes
            running.read_until(seconds)
            steady_seconds = seconds - WARM_UP_SECONDS
            steady = (running.cpu_seconds - warm_cpu) / steady_seconds
            bytes_per_second = (running.written_bytes - warm_bytes) / steady_seconds
            print(
                f"{program.name:12} {running.cpu_seconds:7.2f} {steady:8.2%} {mib(running.memory_bytes('VmHWM')):6.1f} "
                f"{bytes_per_second / 1e3:6.1f} {running.first_frame_seconds():13.3f}"
            )


def print_keys(shown: Sequence[Program]) -> None:
    print(f"{'keys':12} {'quiet ms':>8} {f'beside {BUSY_PROCESSES_PER_VCPU} a vCPU, ms':>22}")
    for program in shown:
        with session(program.command, program.btop_settings) as running:
            running.read_until(WARM_UP_SECONDS)
            if program.ready:
                running.press(program.ready)
            quiet = running.key_seconds(program.keys, KEYS)
            with busy_vcpus(BUSY_PROCESSES_PER_VCPU):
                running.read_until(running.age_seconds + 1.0)
                busy = running.key_seconds(program.keys, KEYS)
        print(f"{program.name:12} {milliseconds(quiet):>8} {milliseconds(busy):>22}")


def print_full_past(flags: list[str]) -> None:
    """Prints the memory of neuron-top with all the history that it keeps."""
    history = ("--interval", str(PAST_INTERVAL_SECONDS), "--history", str(PAST_SECONDS))
    with daemon(*flags, *history) as remembering:
        time.sleep(PAST_SECONDS)
        command = [sys.executable, str(ROOT / "scripts/neuron-top"), "--socket", remembering.socket]
        with session(command) as running:
            running.read_until(WARM_UP_SECONDS)
            wait_for_past(running)
            print(
                f"with all the past that it keeps: {mib(running.memory_bytes('VmRSS')):.1f} MiB, at most "
                f"{mib(running.memory_bytes('VmHWM')):.1f}; {mib(running.proportional_bytes()):.1f} with its share of "
                "what others have too"
            )


def print_openings(snapshot_counts: Sequence[int]) -> None:
    """Prints the cost of opening neuron-top with pasts of these numbers of snapshots, beside other programs."""
    print(f"{'opening':50} {'CPU s':>6} {'first frame s':>13}")
    for program in programs(""):
        if program.name in ("btop", "htop"):
            print_opening(program.name, program.command)
    for load, flags in LOADS.items():
        for count in snapshot_counts:
            seconds = OPENING_INTERVAL_SECONDS * count
            with daemon(*flags, "--interval", str(OPENING_INTERVAL_SECONDS), "--history", str(seconds)) as running:
                time.sleep(seconds)
                print_opening(f"neuron-top, {load}, past of {count}", programs(running.socket)[0].command)


def print_opening(name: str, command: list[str]) -> None:
    """Prints the CPU time that a program uses until it is quiet, above its steady use."""
    with session(command) as running:
        wait_for_past(running)
        spent, until = running.cpu_seconds, running.age_seconds
        running.read_until(until + STEADY_SECONDS)
        spent -= (running.cpu_seconds - spent) / STEADY_SECONDS * until
        print(f"{name:50} {spent:6.2f} {running.first_frame_seconds():13.3f}", flush=True)


def wait_for_past(running: Session) -> None:
    """Waits until the backfill has ended: neuron-top has used little CPU time for some seconds."""
    quiet = 0
    while quiet < 4 and running.age_seconds < LONGEST_LOAD_SECONDS:
        before = running.cpu_seconds
        running.read_until(running.age_seconds + 2.0)
        quiet = quiet + 1 if running.cpu_seconds - before < 0.15 else 0


def mib(size_bytes: int) -> float:
    return size_bytes / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--instance-type", default="trn1.32xlarge")
    parser.add_argument("--lnc", default="")
    parser.add_argument("--load-neuroncores", default="", help="cores with a process each; default: all")
    parser.add_argument("--only", choices=("costs", "keys", "opening", "past"), default="")
    options = parser.parse_args()
    compile_sources()
    flags = ["--simulate", options.instance_type, "--load", "steady"]
    flags += ["--lnc", options.lnc] if options.lnc else []
    flags += ["--load-neuroncores", options.load_neuroncores] if options.load_neuroncores else []
    if options.only not in ("opening", "past"):
        with daemon(*flags) as running:
            all_of_them = programs(running.socket)
            if options.only != "keys":
                print_costs([each for each in all_of_them if each.name not in ("echo", "  unfolding")], options.seconds)
            if options.only != "costs":
                print_keys([program for program in all_of_them if program.keys])
    if options.only in ("", "opening"):
        print_openings((0, 600, 3600))
    if options.only in ("", "past"):
        print_full_past(flags)


if __name__ == "__main__":
    main()
