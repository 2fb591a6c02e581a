"""A simulated host that meets a fault in one situation, and what every output shows of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from urllib.request import urlopen

from neurontools.driver.kernel_log import HARDWARE_ERRORS, parse_kernel_record
from neurontools.faults.kinds import FaultEffect, FaultKind
from neurontools.faults.requests import FaultRequest
from neurontools.model import FaultState
from neurontools.rpc import fault_calls
from tests.harness import python_process
from tests.harness.command import calls
from tests.harness.paths import PYTHONPATH, ROOT
from tests.harness.ports import free_port
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

_STEPS = """
import sys, torch, torch.distributed as dist, torch_xla.core.xla_model as xm
device = xm.xla_device()
dist.init_process_group("xla", store=dist.HashStore(), rank=0, world_size=1)
while True:
    value = torch.ones(64, device=device).mul(2)
    dist.all_reduce(value)
    xm.mark_step()
    print(value.cpu().double().sum().item(), flush=True)
    sys.stdin.readline()
"""
_RESULTS = {"128.0": "goes on", "nan": "NaN in its results"}
_AGENT_PATTERN = re.compile(rf".* NEURON_HW_ERR=({'|'.join(HARDWARE_ERRORS)}) .*")
"""The pattern of AWS's node problem detector and of the EKS node monitoring agent, for all four names."""
_RULE = json.loads((ROOT / "deploy/kubernetes/neuron-health-monitor.json").read_text("utf-8"))["rules"][0]
_SERIES = re.compile(r"^(?P<name>\w+(?:_total|_health))\{(?P<labels>.*)\} (?P<value>[\d.e+-]+)$", re.MULTILINE)
_ERROR_LABEL = re.compile(r'(?:event|error)_type="(\w+)"')
# On a busy host too, no finding ends by itself before the next situation, and no process is called silent.
_CONFIGURATION = "[health]\nwindow_seconds = 86400.0\nsilent_seconds = 86400.0\n"
_HANGS = (FaultEffect.HANGS, FaultEffect.HANGS_IN_COLLECTIVE)
_SHORT_TIMEOUT = {"NEURON_RT_EXEC_TIMEOUT": "5"}  # on a busy host, a step without a fault took more than 1 s

IDLE, ONE_PROCESS = "idle", "one process, LNC 2"


@dataclass(frozen=True, slots=True)
class Shown:
    """The cells of a row of the table in docs/faults.md, one for each output."""

    process: str
    counters: str
    metrics: str
    kernel_line: str
    neuron_ls: str
    healthcheck: str
    node_problem_detector: str
    slurm: str

    def cells(self) -> tuple[str, ...]:
        return astuple(self)


class SteppedTraining:
    """A training that takes a step whenever it is asked to. `result` is that of its latest step; it took the first."""

    def __init__(self, socket: str, directory: Path, core: int, lnc: int, **variables: str) -> None:
        script = directory / "train.py"
        script.write_text(_STEPS, "utf-8")
        self._errors = directory / f"errors{core}"
        with self._errors.open("w") as errors:
            self._process = python_process.popen(
                [sys.executable, "-m", "neurontools.runtime", str(script)],
                loaded=python_process.TORCH,
                env={
                    **os.environ,
                    "PYTHONPATH": PYTHONPATH,
                    "NEURONTOOLS_SOCKET": socket,
                    "NEURON_RT_VISIBLE_CORES": str(core),
                    "NEURON_LOGICAL_NC_CONFIG": str(lnc),
                    "NEURON_COMPILE_CACHE_URL": str(directory / "cache"),
                    **variables,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.pid = self._process.pid
        self.result = self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = str(self._process.stdout.readline().strip())
        if line:
            return _RESULTS.get(line, "wrong results")
        exit_status = self._process.wait()
        found = re.findall(r"(NRT_\w+\(\d+\))", self._errors.read_text("utf-8"))
        return f"{found[-1] if found else 'no status'}, exit {exit_status}"

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def step(self) -> None:
        """Takes a step. A process that has ended has its result already."""
        if not self.has_ended:
            assert self._process.stdin is not None
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            self.result = self._read()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class FaultHost:
    """A simulated trn2.48xlarge with a state directory."""

    def __init__(self, start_daemon: StartDaemon, directory: Path) -> None:
        self._start_daemon, self._directory = start_daemon, directory
        self._kernel_log, self._metrics = directory / "kmsg", f"127.0.0.1:{free_port()}"
        (directory / "neurond.toml").write_text(_CONFIGURATION, "utf-8")
        self.daemon = self._start()
        self._loses_reports = False
        self._counts_before: dict[str, float] = {}

    def _start(self) -> RunningDaemon:
        return self._start_daemon(
            *("--simulate", "trn2.48xlarge", "--interval", "0.1", "--metrics-listen", self._metrics),
            *("--export-kernel-log", str(self._kernel_log), "--config", str(self._directory / "neurond.toml")),
            *("--state-directory", str(self._directory / "state")),
            name=f"{self._directory.name}.sock",
        )

    def restart(self) -> None:
        self.daemon.stop()
        self.daemon = self._start()
        self._kernel_log.write_bytes(b"")

    def inject(self, kind: FaultKind) -> None:
        self._loses_reports = kind.loses_reports
        fault_calls.inject(self.daemon.socket, [FaultRequest(kind.name, device_index=0)])

    def heal(self) -> None:
        fault_calls.heal(self.daemon.socket)
        self._loses_reports = False
        self.daemon.next_snapshot()  # the metrics have what the ended processes reported last
        self._counts_before = self._read_series()[1]
        self._kernel_log.write_bytes(b"")

    def wait_until_over(self, other: SteppedTraining) -> None:
        """Waits until the fault has ended and this process has received its end."""
        wait_until(lambda: fault_calls.list_faults(self.daemon.socket)[0].state is FaultState.OVER)
        # Injecting waits until the process has this fault, and messages to a process stay in order.
        late = FaultRequest("slow-core", pid=other.pid, after_executions=1_000_000)
        (marker,) = fault_calls.inject(self.daemon.socket, [late])
        fault_calls.heal(self.daemon.socket, [marker.number])

    @contextmanager
    def processes(self, kind: FaultKind, *cores: int, lnc: int = 2) -> Iterator[list[SteppedTraining]]:
        variables = _SHORT_TIMEOUT if kind.effect in _HANGS else {}
        started = [SteppedTraining(self.daemon.socket, self._directory, core, lnc, **variables) for core in cores]
        try:
            yield started
        finally:
            for process in started:
                process.end()

    def shown(self, processes: Sequence[SteppedTraining] = ()) -> Shown:
        """Reads all outputs at a tick that knows the latest step of these processes, or that they have ended."""
        now_seconds = time.monotonic()
        for process in processes:
            wait_until(lambda: self._is_known(process, now_seconds))  # noqa: B023
        self.daemon.next_snapshot(3)
        ask = ("--socket", self.daemon.socket)
        check = calls("neuron-healthcheck", {})
        checked, condition = check("--format", "json", *ask), check(*_RULE["args"], *ask)
        names = dict.fromkeys(finding["name"] for finding in json.loads(checked.stdout)["findings"])
        return Shown(
            process=" / ".join(dict.fromkeys(process.result for process in processes)) or "-",
            counters=self._counters(),
            metrics=self._series(),
            kernel_line=", ".join(dict.fromkeys(self._agent_reasons())) or "-",
            neuron_ls=str(calls("neuron-ls", {})("--health", *ask).returncode),
            healthcheck=" ".join((str(checked.returncode), *names)),
            node_problem_detector=f"True {condition.stdout.partition(':')[0]}" if condition.returncode else "False",
            slurm="drained" if check("--problems", "node", *ask).returncode else "in service",
        )

    def shown_to_process(self, kind: FaultKind, *, lnc: int = 2) -> Shown:
        """Reads all outputs after a process has taken a step with this fault."""
        with self.processes(kind, 0, lnc=lnc) as processes:
            self.inject(kind)
            processes[0].step()
            return self.shown(processes)

    def _is_known(self, process: SteppedTraining, since_seconds: float) -> bool:
        if process.has_ended:
            return process.pid in {each.pid for each in self.daemon.snapshot().ended}
        found = self.daemon.find(process.pid)
        return self._loses_reports or (found is not None and (found.measured_at_seconds or 0.0) > since_seconds)

    def _counters(self) -> str:
        """Returns the counters of devices and NeuronCores that are not 0, without those of successful executions."""
        snapshot = self.daemon.snapshot()
        found: Counter[str] = Counter()
        for part in (*(device.ecc for device in snapshot.devices), *(core.status for core in snapshot.cores)):
            for name in type(part).__slots__ if part is not None else ():
                found[name.removesuffix("_total")] += getattr(part, name) or 0
        del found["success"]
        return ", ".join(f"{name} {count}" for name, count in sorted(found.items()) if count) or "-"

    def _series(self) -> str:
        """Returns the highest health of a device, and the series of errors that have grown since the latest heal."""
        health, counts = self._read_series()
        grown = sorted(name for name, count in counts.items() if count > self._counts_before.get(name, 0.0))
        return ", ".join((f"neurontools_device_health {health:g}", *grown))

    def _read_series(self) -> tuple[float, dict[str, float]]:
        with urlopen(f"http://{self._metrics}/metrics") as answer:
            text = answer.read().decode()
        health = 0.0
        counts: dict[str, float] = {}
        for match in _SERIES.finditer(text):
            label, value = _ERROR_LABEL.search(match["labels"]), float(match["value"])
            if match["name"] == "neurontools_device_health":
                health = max(health, value)
            elif label is not None:
                name = f"{match['name']}{{{label[1]}}}"
                counts[name] = counts.get(name, 0.0) + value
        return health, counts

    def _agent_reasons(self) -> Iterable[str]:
        """Yields the name in each record of the kernel log, which AWS's agents match."""
        for line in self._kernel_log.read_bytes().splitlines(keepends=True):
            record = parse_kernel_record(line)
            match = _AGENT_PATTERN.match(record.text) if record is not None else None
            assert match is not None, line
            yield match[1]


def shown_once(host: FaultHost, kind: FaultKind) -> tuple[str, Shown]:
    """Injects a fault. Returns the first situation that shows this kind: an idle host, or a process that meets it."""
    if kind.effect is FaultEffect.NONE:
        host.inject(kind)
        return IDLE, host.shown()
    return ONE_PROCESS, host.shown_to_process(kind)


def situations(start_host: Callable[[str], FaultHost], kind: FaultKind) -> Iterator[tuple[str, Shown]]:
    """Yields what a host shows in each situation."""
    idle = start_host("idle")
    idle.inject(kind)
    yield IDLE, idle.shown()
    one = start_host("one")
    yield ONE_PROCESS, one.shown_to_process(kind)
    one.restart()
    with one.processes(kind, 0) as processes:
        yield "daemon restarted, next process", one.shown(processes)
    one.heal()
    with one.processes(kind, 0) as processes:
        yield "healed, next process", one.shown(processes)
    yield "one process, LNC 1", start_host("small").shown_to_process(kind, lnc=1)
    two = start_host("two")
    with two.processes(kind, 0, 1) as (first, second):
        two.inject(kind)
        first.step()
        if not kind.outlives_process:
            two.wait_until_over(second)
        second.step()
        yield "two processes", two.shown((first, second))
