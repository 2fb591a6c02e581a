"""A cluster of one node: the real slurmctld and slurmd in the foreground, on loopback, in directories of their own."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.paths import ROOT
from tests.harness.ports import free_port
from tests.harness.waiting import HANG_SECONDS, run_to_end, wait_until

needs_slurm = pytest.mark.skipif(
    not all(map(shutil.which, ("slurmctld", "slurmd", "scontrol"))) or os.geteuid() != 0,
    reason="slurmctld and slurmd are not installed, or this user isn't root",
)
NODE = "trn-0"
_STATE_SECONDS = 1

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=1
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
HealthCheckProgram={directory}/health_check
HealthCheckInterval={seconds}
HealthCheckNodeState=ANY
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=1 RealMemory=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """A context; the node's HealthCheckProgram is neuron-healthcheck, asking the daemon at a socket, every second."""

    def __init__(self, directory: Path, daemon_socket: str) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._write_health_check(daemon_socket)
        for name in ("state", "spool"):
            (directory / name).mkdir()
        (directory / "slurm.conf").write_text(
            _CONFIGURATION.format(
                host=socket.gethostname(),
                controller_port=free_port(),
                node_port=free_port(),
                user=getpass.getuser(),
                directory=directory,
                seconds=_STATE_SECONDS,
                node=NODE,
            ),
            "utf-8",
        )
        (directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n", "utf-8")
        self.environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}

    def __enter__(self) -> SlurmCluster:
        try:
            self._start("slurmctld", "-D", "-i")
            wait_until(lambda: self._scontrol("ping").returncode == 0)
            self._start("slurmd", "-D", "-N", NODE)
            wait_until(lambda: "IDLE" in self.state())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(HANG_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def node(self) -> str:
        """What `scontrol show node` says."""
        return self._scontrol("show", "node", NODE).stdout

    def state(self) -> str:
        """The state of the node: IDLE, IDLE+DRAIN."""
        found = re.search(r"State=(\S+)", self.node())
        return found[1] if found else ""

    def reason(self) -> str:
        """Why it is drained, without who did it; "" without a reason."""
        found = re.search(r"Reason=(.*?)(?: \[.*\])?$", self.node(), re.MULTILINE)
        return found[1] if found else ""

    def drain(self, reason: str) -> None:
        """Drains the node as an operator does."""
        done = self._scontrol("update", f"NodeName={NODE}", "State=DRAIN", f"Reason={reason}")
        assert done.returncode == 0, done.stderr

    def check(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """The health check, run by hand."""
        return self._run(str(self._directory / "health_check"), *flags)

    def _write_health_check(self, daemon_socket: str) -> None:
        """What deploy/slurm has, with the paths of this checkout."""
        shipped = (ROOT / "deploy/slurm/neuron-health-check").read_text("utf-8")
        command = f"{sys.executable} {ROOT}/scripts/neuron-healthcheck --socket {daemon_socket}"
        program = self._directory / "health_check"
        adapted = shipped.replace("/usr/local/bin/neuron-healthcheck", command)
        adapted = adapted.replace("#export SLURM_CONF=/etc/slurm", f"export SLURM_CONF={self._directory}")
        program.write_text(adapted, "utf-8")
        program.chmod(0o755)

    def _start(self, *command: str) -> None:
        with (self._directory / f"{command[0]}.out").open("ab") as out:
            self._processes.append(
                subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            )

    def _scontrol(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run("scontrol", *arguments)

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return run_to_end(command, env={**self.environment, "SLURMD_NODENAME": NODE})
