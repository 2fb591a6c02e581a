"""Measures what a reader of summaries costs the daemon, over TLS and at the Unix socket: network_summary.py [SECONDS].

The cost is the daemon's CPU time with 50 readers, less that without readers, divided by 50. Each gets one summary a
second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from neurontools.rpc.call import PolledStream  # noqa: E402
from neurontools.rpc.remote_address import remote_address  # noqa: E402
from neurontools.rpc.tunnel_registry import TunnelSet, client_tls  # noqa: E402
from tests.harness.certificates import Authority  # noqa: E402

READERS = 50
METHOD = "/neurontools.v1.MonitorService/WatchHostSummary"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share_of_a_core(pid: int, seconds: float, streams: list[PolledStream]) -> tuple[float, int]:
    """Returns the CPU seconds a second of a process, and the number of received summaries."""
    began, before, count = time.monotonic(), cpu_seconds(pid), 0
    while (passed := time.monotonic() - began) < seconds:
        count += sum(len(stream.messages()) for stream in streams)
        time.sleep(0.2)
    return (cpu_seconds(pid) - before) / passed, count


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    with tempfile.TemporaryDirectory(prefix="nb-") as name:
        directory = Path(name)
        authority = Authority(directory)
        certificate, key = authority.sign("server")
        viewer, viewer_key = authority.sign("viewer", "DNS:viewer")
        configuration = directory / "neurond.toml"
        configuration.write_text(
            f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\nclient_ca = "{authority.file}"\n'
            'summary = ["viewer"]\n',
            "utf-8",
        )
        log, path = directory / "log", f"{directory}/s.sock"
        flags = ("--simulate", "trn2.48xlarge", "--load", "steady", "--socket", path, "--listen", "127.0.0.1:0")
        with log.open("wb") as out:
            daemon = subprocess.Popen([sys.executable, "-m", "neurond", *flags, "--config", configuration], stderr=out)
        try:
            while "serving" not in log.read_text("utf-8"):
                time.sleep(0.05)
            port = int(log.read_text("utf-8").partition("grpcs://127.0.0.1:")[2].split()[0])
            given = {"tls-cert": str(viewer), "tls-key": str(viewer_key), "tls-ca": str(authority.file)}
            with TunnelSet(client_tls(given, {})) as tunnels:
                alone, _ = share_of_a_core(daemon.pid, seconds, [])
                print(f"daemon without readers: {alone:.2%} of a core")
                for kind in ("socket", "TLS"):
                    streams = []
                    for _ in range(READERS):
                        where = path if kind == "socket" else tunnels.open(remote_address(f"grpcs://127.0.0.1:{port}"))
                        streams.append(PolledStream(where, METHOD, b"", max_reply_bytes=2**15))
                    share_of_a_core(daemon.pid, 3.0, streams)
                    with_readers, count = share_of_a_core(daemon.pid, seconds, streams)
                    for stream in streams:
                        stream.close()
                    print(
                        f"{READERS} readers over {kind}: {(with_readers - alone) / READERS:.3%} of a core each, "
                        f"{count / seconds / READERS:.2f} summaries a second each"
                    )
        finally:
            daemon.terminate()
            daemon.wait()


if __name__ == "__main__":
    main()
