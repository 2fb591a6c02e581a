"""The trial of many clients at once: viewers, TLS clients, captures and reloads."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random

from campaign.host import PATIENCE_SECONDS, Host, host, neuron_ls
from campaign.outcome import Outcome
from campaign.population import Worker

_TRAINING = """
import torch, torch_xla.core.xla_model as xm
device = xm.xla_device()
model = torch.nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    optimizer.zero_grad()
    model(torch.ones(4, 16, device=device)).square().mean().backward()
    optimizer.step()
    xm.mark_step()
"""
_REQUEST = b"GET /top/overview HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
_SUBJECT = "spiffe://example.org/campaign"
_PAUSE_SECONDS = 0.05


def clients(seconds: float, random: Random, directory: Path) -> Outcome:
    """Lets clients of each kind work at once, while processes start and end. Each has to succeed."""
    outcome = Outcome("viewers, TLS clients, captures, reloads")
    certificate, key, configuration = (directory / name for name in ("crt", "key", "neurond.toml"))
    names = f"subjectAltName=IP:127.0.0.1,URI:{_SUBJECT}"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    made += ["-keyout", str(key), "-out", str(certificate), "-days", "1", "-subj", "/CN=campaign", "-addext", names]
    subprocess.run(made, check=True, capture_output=True)
    files = {"CERT": certificate, "KEY": key, "CA": certificate}
    client_environment = {f"NEURONTOOLS_TLS_{name}": str(file) for name, file in files.items()}
    tls = f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\nclient_ca = "{certificate}"\nfull = ["{_SUBJECT}"]\n'
    configuration.write_text(tls)
    web_port, tls_port = _free_port(), _free_port()
    flags = ["--simulate", "trn1.32xlarge", "--interval", "0.1", "--metrics-listen", f"127.0.0.1:{web_port}", "--web"]
    flags += ["--listen", f"127.0.0.1:{tls_port}", "--config", str(configuration)]
    flags += ["--state-directory", str(directory / "state")]
    with host(directory, *flags) as daemon, _training(daemon, directory) as training:
        context = ssl.create_default_context(cafile=str(certificate))
        context.load_cert_chain(certificate, key)
        reloads = iter(range(1, sys.maxsize))

        def view() -> str:
            tcp = socket.create_connection(("127.0.0.1", web_port), PATIENCE_SECONDS)
            with context.wrap_socket(tcp, server_hostname="127.0.0.1") as viewer:
                viewer.sendall(_REQUEST)
                received = b""
                while received.count(b"event: changes") < 3 and (part := viewer.recv(1 << 16)):
                    received += part
            return "" if received.count(b"event: changes") >= 3 else f"a viewer got {received[:80]!r}"

        def read_over_tls() -> str:
            return _failure("ls", "--hosts", f"grpcs://127.0.0.1:{tls_port}", environment=client_environment)

        def capture() -> str:
            profile = directory / f"profile{time.monotonic_ns()}"
            flags = ("--socket", daemon.socket, "--steps", "5", "-o", str(profile))
            return _failure("profile", "capture", "--pid", str(training.pid), *flags)

        def reload() -> str:
            number = next(reloads)
            configuration.write_text(f"{tls}[health]\nidle_seconds = {100 + number}.0\n")
            daemon.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while daemon.log.count("the configuration was reloaded; changed: health_thresholds") < number:
                if time.monotonic() > deadline:
                    return "the configuration was not reloaded"
                time.sleep(_PAUSE_SECONDS)
            return ""

        def churn() -> str:
            worker = Worker(daemon.socket, random.choice((1, 2, 4)), directory / "workers.log")
            has_worked = worker.execute(random.randrange(50))
            worker.end(random.choice((signal.SIGKILL, None)))
            return "" if has_worked else "a worker is gone"

        def ask() -> str:
            answered, _, errors = neuron_ls(daemon.socket)
            return "" if answered else f"neuron-ls was not answered: {errors.strip()[:200]}"

        kinds: dict[str, Callable[[], str]] = {
            "views": view,
            "reads over TLS": read_over_tls,
            "captures": capture,
            "reloads": reload,
            "processes": churn,
            "neuron-ls": ask,
        }
        counts = dict.fromkeys(kinds, 0)
        deadline = time.monotonic() + seconds

        def repeat(name: str) -> None:
            while not counts[name] or time.monotonic() < deadline:
                counts[name] += 1
                failure = kinds[name]()
                outcome.check(not failure, failure)

        with ThreadPoolExecutor(len(kinds)) as pool:
            for done in [pool.submit(repeat, name) for name in kinds]:
                done.result()
        outcome.rounds = sum(counts.values())
        outcome.check(training.poll() is None, "the captured training has ended")
        training.kill()
        outcome.check(daemon.settles(lambda snapshot: not snapshot.processes), "a process stays that has ended")
        outcome.check("Traceback" not in daemon.log, "the daemon's log has a traceback")
    outcome.figure = ", ".join(f"{count} {name}" for name, count in counts.items())
    return outcome


@contextmanager
def _training(daemon: Host, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = directory / "train.py"
    script.write_text(_TRAINING)
    environment = {"NEURONTOOLS_SOCKET": daemon.socket, "NEURON_RT_NUM_CORES": "1"}
    with (directory / "training.log").open("wb") as log:
        training = subprocess.Popen(
            [sys.executable, "-m", "neurontools.runtime", str(script)],
            env={**os.environ, **environment, "NEURON_COMPILE_CACHE_URL": str(directory / "cache")},
            stdout=log,
            stderr=log,
        )
    with training:
        try:
            if not daemon.settles(lambda snapshot: any(each.training is not None for each in snapshot.processes)):
                raise RuntimeError(f"the training did not start: {(directory / 'training.log').read_text()[-500:]}")
            yield training
        finally:
            training.kill()


def _failure(command: str, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """Runs a command. Returns why it failed, and "" if it succeeded."""
    start = f"from neurontools.cli.{command}.command import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", start, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
        timeout=2 * PATIENCE_SECONDS,
    )
    return "" if done.returncode == 0 else f"neuron-{command}: exit code {done.returncode}: {done.stderr[-200:]}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
