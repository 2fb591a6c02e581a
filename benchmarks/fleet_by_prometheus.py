"""Measures the cost of a view of many hosts by Prometheus: series, CPU time of rules, queries, bytes and seconds.

    python benchmarks/fleet_by_prometheus.py [--hosts 2000] [--kinds 8] [--interval 30] [--hosts-of-a-job 8] [--whole]

A real Prometheus with deploy/prometheus/neuron.rules.yml scrapes many targets of one server. The server replays the
replies at /metrics/fleet of simulated daemons of several kinds; with --whole, those at /metrics. On hosts with a job,
trainings with eight ranks on each host replace the jobs of the simulator, which have one host each and no steps. The
time of the rules is that of Prometheus for the latest evaluation of all groups. The bytes of the queries are compressed
and unpacked. CPU seconds of Prometheus include its scrapes meanwhile. Memory is the resident size of Prometheus.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from neurontools.fleet.prometheus.feed import PrometheusFeed
from neurontools.fleet.prometheus.queries import SNAPSHOT_TIMESTAMP
from neurontools.fleet.states import HostLink
from neurontools.testing import SimulatedFleet

RULES = Path(__file__).parents[1] / "deploy/prometheus/neuron.rules.yml"
PATIENCE_SECONDS = 600.0
RANKS_OF_A_HOST = 8


def bodies(kinds: int, mix: str | None, path: str) -> list[bytes]:
    """Returns the replies of simulated hosts at a path, without the time of the snapshot."""
    first = free_port(kinds)
    found = []
    with SimulatedFleet(kinds, mix=mix, interval_seconds=2, metrics_from=first) as fleet:
        time.sleep(10)
        for place in range(len(fleet.places)):
            lines = scraped(f"http://127.0.0.1:{first + place}{path}")
            kept = [line for line in lines if not line.startswith(SNAPSHOT_TIMESTAMP)]
            found.append(("\n".join(kept) + "\n").encode())
    return found


def scraped(url: str) -> list[str]:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=60) as reply:
                text: str = reply.read().decode()
                return text.splitlines()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(1)


def free_port(count: int) -> int:
    for first in range(21_000, 32_000, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise SystemExit("no free ports")


def without_jobs(text: bytes) -> tuple[bytes, bool]:
    """Returns the lines that describe no single job, and whether there were such lines."""
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if b"neurontools_job_" not in line]
    return b"".join(kept), len(kept) < len(lines)


def training(number: int, hosts_of_a_job: int) -> bytes:
    """Returns the metrics of the part of a training that runs on host `number`: eight ranks on each host."""
    place = number % hosts_of_a_job
    job = f'job_name="torchrun train.py",run_id="{number // hosts_of_a_job:012x}"'
    values = {
        "ranks": RANKS_OF_A_HOST,
        "world_size": RANKS_OF_A_HOST * hosts_of_a_job,
        "missing_ranks": 0,
        "neuroncores": RANKS_OF_A_HOST,
        "seconds_since_last_step": 0.3,
        "steps_per_second": 2,
        "step_seconds": 0.5,
        "mfu_ratio": 0.4,
    }
    lines = [f"neurontools_job_{name}{{{job}}} {value}" for name, value in values.items()]
    lines.append(f'neurontools_job_state{{{job},state="training"}} 1')
    ranks = range(RANKS_OF_A_HOST * place, RANKS_OF_A_HOST * (place + 1))
    wait = "neurontools_job_rank_collective_wait_seconds"
    lines += [f'{wait}{{{job},rank="{rank}"}} {0.1 + rank % 7 / 1000}' for rank in ranks]
    return "\n".join([*lines, ""]).encode()


class Hosts(ThreadingHTTPServer):
    """Serves host number N at /N, with the current time. Each job runs on `hosts_of_a_job` hosts."""

    def __init__(self, texts: Sequence[bytes], hosts_of_a_job: int) -> None:
        self._parts = [without_jobs(text) for text in texts]
        self._hosts_of_a_job = hosts_of_a_job
        text = self.text

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = text(int(self.path[1:]))
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def handle_one_request(self) -> None:
                with contextlib.suppress(OSError):
                    super().handle_one_request()

            def log_message(self, *_: object) -> None:
                """Logs nothing."""

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def text(self, number: int) -> bytes:
        """Returns the metrics of host `number`, with the current time."""
        rest, has_job = self._parts[number // self._hosts_of_a_job % len(self._parts)]
        jobs = training(number, self._hosts_of_a_job) if has_job else b""
        return rest + jobs + f"{SNAPSHOT_TIMESTAMP} {time.time()}\n".encode()


def prometheus(directory: Path, hosts: Hosts, count: int, interval: int) -> tuple[str, subprocess.Popen[bytes]]:
    targets = [
        {
            "targets": [f"127.0.0.1:{hosts.server_port}"],
            "labels": {
                "instance": f"10.{number >> 8}.{number & 255}.1:8000",
                "node": f"trn-{number:04d}",
                "__metrics_path__": f"/{number}",
            },
        }
        for number in range(count)
    ]
    (directory / "targets.json").write_text(json.dumps(targets))
    configuration = {
        "global": {"scrape_interval": f"{interval}s", "evaluation_interval": f"{interval}s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "neurond", "file_sd_configs": [{"files": [str(directory / "targets.json")]}]}],
    }
    (directory / "prometheus.yml").write_text(json.dumps(configuration))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    return f"http://127.0.0.1:{port}", process


def asked(url: str, query: str) -> tuple[int, int]:
    """Returns the number of series in the reply to a query, and the unpacked bytes of the reply."""
    try:
        data = urllib.parse.urlencode({"query": query}).encode()
        with urllib.request.urlopen(f"{url}/api/v1/query", data, timeout=60) as reply:
            body = reply.read()
    except OSError:
        return 0, 0
    return len(json.loads(body)["data"]["result"]), len(body)


def measure(url: str, process: subprocess.Popen[bytes], count: int) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while asked(url, SNAPSHOT_TIMESTAMP)[0] < count or not rule_seconds(url):
        if time.monotonic() > until or process.poll() is not None:
            raise SystemExit(f"{asked(url, SNAPSHOT_TIMESTAMP)[0]} of {count} hosts are known")
        time.sleep(1)
    print(f"{'rules':>14}: {rule_seconds(url):.2f} s for one evaluation of all groups", flush=True)
    for by_user in (False, True):
        measure_overview(url, process, by_user=by_user)


def rule_seconds(url: str) -> float:
    """Returns the duration of the latest evaluation of all groups; 0 before all groups were evaluated."""
    with urllib.request.urlopen(f"{url}/api/v1/rules", timeout=60) as reply:
        groups = json.loads(reply.read())["data"]["groups"]
    times = [float(group["evaluationTime"]) for group in groups]
    return sum(times) if all(times) else 0.0


def measure_overview(url: str, process: subprocess.Popen[bytes], *, by_user: bool) -> None:
    unpacked = 0
    with PrometheusFeed(url) as feed:
        if by_user:
            feed.request_users()
        before, cpu_before, began = time.process_time(), cpu_seconds(process.pid), time.monotonic()
        feed.start()
        feed.wait_settled()
        took, cpu = time.monotonic() - began, time.process_time() - before
        cpu_of_server = cpu_seconds(process.pid) - cpu_before
        queries, came = feed.query_count, feed.answered_bytes
        live = sum(state.link is HostLink.LIVE for state in feed.states)
        slowest = ("", 0.0)
        for name, text in feed.query_texts.items():
            asked_at = time.monotonic()
            unpacked += asked(url, text)[1]
            slowest = max(slowest, (name, time.monotonic() - asked_at), key=lambda each: each[1])
        print(
            f"{'view by user' if by_user else 'view':>14}: "
            f"{live} live, {queries} queries, "
            f"{came / 1e3:.0f} kB as they came, {unpacked / 1e3:.0f} kB unpacked; {took:.2f} s, "
            f"{cpu:.2f} s of CPU here, {cpu_of_server:.2f} s in Prometheus; "
            f"the slowest query ({slowest[0]}) takes {slowest[1]:.2f} s; "
            f"{resident_bytes(process.pid) / 2**20:.0f} MiB Prometheus",
            *feed.notes,
            flush=True,
        )


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2000)
    parser.add_argument("--kinds", type=int, default=8)
    parser.add_argument("--mix", help="as neuron-fleet-sim has it")
    parser.add_argument("--interval", type=int, default=30)
    parser.add_argument("--hosts-of-a-job", type=int, default=8)
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    texts = bodies(given.kinds, given.mix, "/metrics" if given.whole else "/metrics/fleet")
    hosts = Hosts(texts, given.hosts_of_a_job)
    served = [hosts.text(number) for number in range(len(texts) * given.hosts_of_a_job)]
    series_count = sum(line[:1] != b"#" for text in served for line in text.splitlines()) / len(served)
    print(f"{given.hosts} hosts with {series_count:.0f} series each, scraped every {given.interval} s", flush=True)
    with tempfile.TemporaryDirectory() as name:
        url, process = prometheus(Path(name), hosts, given.hosts, given.interval)
        try:
            measure(url, process, given.hosts)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
