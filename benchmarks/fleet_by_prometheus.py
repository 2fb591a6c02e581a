"""Measures the queries and bytes that a view of many hosts needs from Prometheus, with our recording rules and without.

    python benchmarks/fleet_by_prometheus.py [--hosts 2000] [--kinds 8] [--interval 30]

A real Prometheus scrapes many targets of one server. The server replays replies of simulated daemons of several kinds,
reduced to the series that the rules read (a whole host has 15 times as many). It prints the bytes of the replies,
compressed and unpacked. One query for all series of a metric shows what a view without aggregates would need. CPU time
is that of this process; memory is the resident size of Prometheus.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
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

from neurontools.fleet.prometheus import queries
from neurontools.fleet.prometheus.feed import PrometheusFeed
from neurontools.fleet.prometheus.queries import HOST_RULES, MFU, SNAPSHOT_TIMESTAMP
from neurontools.fleet.prometheus.server import PrometheusAccess, PrometheusServer
from neurontools.fleet.states import HostLink
from neurontools.testing import SimulatedFleet

READ = re.compile(
    r"(neurontools_(neuroncore_(held|utilization_ratio|executions_total|mfu_ratio)|device_(health|memory_bytes)|"
    r"health|finding_seconds|warnings|jobs|job_[a-z_]+|process_(steps_total|info)|devices|"
    r"snapshot_timestamp_seconds)|instance_info)[{ ]"
)
PATIENCE_SECONDS = 600.0


def bodies(kinds: int, mix: str | None) -> list[bytes]:
    """Returns the replies of simulated hosts at /metrics, reduced to the series that are read."""
    first = free_port(kinds)
    found = []
    with SimulatedFleet(kinds, mix=mix, interval_seconds=2, metrics_from=first) as fleet:
        time.sleep(10)
        for place in range(len(fleet.places)):
            lines = scraped(f"http://127.0.0.1:{first + place}/metrics")
            kept = [line for line in lines if READ.match(line) and not line.startswith(SNAPSHOT_TIMESTAMP)]
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


class Hosts(ThreadingHTTPServer):
    """Serves host number N at /N, with the current time."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = texts[int(self.path[1:]) % len(texts)] + f"{SNAPSHOT_TIMESTAMP} {time.time()}\n".encode()
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


def prometheus(
    directory: Path, hosts: Hosts, count: int, interval: int, *, rules: bool
) -> tuple[str, subprocess.Popen[bytes]]:
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
    recorded = [{"record": rule.rule, "expr": rule.expression} for rule in (*HOST_RULES, MFU, *queries.JOB_RULES)]
    (directory / "rules.json").write_text(json.dumps({"groups": [{"name": "hosts", "rules": recorded}]}))
    configuration = {
        "global": {"scrape_interval": f"{interval}s", "evaluation_interval": f"{interval}s"},
        "rule_files": [str(directory / "rules.json")] if rules else [],
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


def measure(url: str, process: subprocess.Popen[bytes], count: int, *, rules: bool) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    wanted = "instance:neuron_devices:conditions" if rules else SNAPSHOT_TIMESTAMP
    while asked(url, wanted)[0] < count:
        if time.monotonic() > until or process.poll() is not None:
            raise SystemExit(f"{asked(url, wanted)[0]} of {count} hosts are known")
        time.sleep(1)
    for by_user in (False, True):
        measure_overview(url, process, by_user=by_user)
    series, size = asked(url, "neurontools_neuroncore_utilization_ratio")
    server = PrometheusServer(url, PrometheusAccess())
    came = server.query("neurontools_neuroncore_utilization_ratio", 60).size_bytes
    server.close()
    print(
        f"{'one family':>14}: {series} series, {came / 1e3:.0f} kB as they come, {size / 1e3:.0f} kB unpacked",
        flush=True,
    )


def measure_overview(url: str, process: subprocess.Popen[bytes], *, by_user: bool) -> None:
    unpacked = 0
    with PrometheusFeed(url) as feed:
        if by_user:
            feed.request_users()
        before, began = time.process_time(), time.monotonic()
        feed.start()
        feed.wait_settled()
        took, cpu = time.monotonic() - began, time.process_time() - before
        queries, came = feed.query_count, feed.answered_bytes
        live = sum(state.link is HostLink.LIVE for state in feed.states)
        for text in feed.query_texts.values():
            unpacked += asked(url, text)[1]
        print(
            f"{'with rules' if feed.is_recorded else 'without rules':>14}{' by user' * by_user}: "
            f"{live} live, {queries} queries, "
            f"{came / 1e3:.0f} kB as they came, {unpacked / 1e3:.0f} kB unpacked; {took:.2f} s, "
            f"{cpu:.2f} s of CPU here; {resident_bytes(process.pid) / 2**20:.0f} MiB Prometheus",
            *feed.notes,
            flush=True,
        )


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2000)
    parser.add_argument("--kinds", type=int, default=8)
    parser.add_argument("--mix", help="as neuron-fleet-sim has it")
    parser.add_argument("--interval", type=int, default=30)
    parser.add_argument("--only-with-rules", action="store_true")
    given = parser.parse_args()
    texts = bodies(given.kinds, given.mix)
    lines = sum(text.count(b"\n") for text in texts) / len(texts)
    print(f"{given.hosts} hosts with {lines:.0f} series each, scraped every {given.interval} s", flush=True)
    hosts = Hosts(texts)
    for rules in (True,) if given.only_with_rules else (True, False):
        with tempfile.TemporaryDirectory() as name:
            url, process = prometheus(Path(name), hosts, given.hosts, given.interval, rules=rules)
            try:
                measure(url, process, given.hosts, rules=rules)
            finally:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
