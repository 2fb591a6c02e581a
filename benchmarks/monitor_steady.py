"""Measures neuron-monitor at 1 s beside 32 processes on trn1.32xlarge. Limits: 1 % of a core, 45 MiB.

The reference is its daemon, which also runs the synthetic load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = float(os.environ.get("SECONDS", "20"))
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bm-") as directory:
        socket = f"{directory}/n.sock"
        everything = {
            "period": "1s",
            "neuron_runtimes": [
                {
                    "metrics": [
                        {"type": name}
                        for name in (
                            "neuroncore_counters",
                            "memory_used",
                            "neuron_runtime_vcpu_usage",
                            "execution_stats",
                        )
                    ]
                }
            ],
            "system_metrics": [{"type": name} for name in ("vcpu_usage", "memory_info", "neuron_hw_counters")],
        }
        file = Path(directory) / "monitor.json"
        file.write_text(json.dumps(everything), "utf-8")
        ready, tell = os.pipe()
        daemon = subprocess.Popen(
            [
                *(sys.executable, "-m", "neurond", "--simulate", "trn1.32xlarge", "--load", "steady"),
                *("--socket", socket, "--log-level", "error", "--ready-fd", str(tell)),
            ],
            pass_fds=(tell,),
        )
        os.close(tell)
        with os.fdopen(ready) as said:
            said.readline()
        with (Path(directory) / "records").open("wb") as records:
            monitor = subprocess.Popen(
                [sys.executable, "-m", "neurontools.cli.monitor.command", "-c", str(file), "--socket", socket],
                stdout=records,
            )
            time.sleep(3)
            before, began = (cpu_seconds(monitor.pid), cpu_seconds(daemon.pid)), time.monotonic()
            time.sleep(SECONDS)
            spent = time.monotonic() - began
            after = cpu_seconds(monitor.pid), cpu_seconds(daemon.pid)
            print(f"neuron-monitor at 1 s: {(after[0] - before[0]) / spent:.2%} of a core (asked for: 1 %)")
            print(f"neuron-monitor memory, at most: {peak_mib(monitor.pid):.1f} MiB (asked for: 45 MiB)")
            daemon_share = (after[1] - before[1]) / spent
            print(f"reference, the daemon with its load: {daemon_share:.2%}, {peak_mib(daemon.pid):.1f} MiB")
            monitor.kill()
            monitor.wait()
        daemon.terminate()
        daemon.wait()


if __name__ == "__main__":
    main()
