"""Faults of a daemon: what holds when, who may inject them, what is refused, what everybody is shown."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.allocator import CoreAllocator
from neurond.faults import FaultEffects, FaultInjector, NoSuchFault, NoTarget, TooMany, UnusableState
from neurond.journal.state_files import (
    ENDED_FILE,
    FAULTS_FILE,
    EndedFile,
    FaultsFile,
    open_audit_file,
    open_state_file,
)

from neurontools.driver.kernel_log import HardwareError
from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.faults.kinds import KINDS
from neurontools.faults.requests import MOST_FAULTS, FaultRequest
from neurontools.model import EccCounters, FaultState, InjectedFault, StatusCounters
from neurontools.model.finding import FindingKind
from neurontools.rpc import fault_calls, neuron_pb2
from neurontools.rpc.call import RpcError, Status
from neurontools.testing import DriverTree
from neurontools.util.errors import UserError
from tests.harness.allocator_parts import TRN1, TRN2, entered
from tests.harness.hostile_user import HOSTILE, needs_two_users, public_directory, successful_attacks
from tests.harness.paths import PYTHONPATH
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import run_to_end, wait_until

INJECT = "/neurontools.v1.FaultService/InjectFaults"


@pytest.fixture
def daemon(shared_daemon: RunningDaemon) -> Iterator[RunningDaemon]:
    """The module's daemon, without faults and what they have made."""
    yield shared_daemon
    fault_calls.heal(shared_daemon.socket)
    wait_until(lambda: not told_findings(shared_daemon) and not shared_daemon.snapshot().processes)


def told_findings(daemon: RunningDaemon) -> dict[str, bool]:
    """The findings that there are, and whether they are marked as injected."""
    return {finding.kind: finding.injected for finding in daemon.findings()}


def test_an_injected_error_is_a_finding_that_says_so_until_it_is_healed(daemon: RunningDaemon) -> None:
    (fault,) = fault_calls.inject(daemon.socket, [FaultRequest("hbm-uncorrectable", device_index=3)])
    assert (fault.kind, fault.state, fault.device_indices) == ("hbm-uncorrectable", FaultState.HOLDS, (3,))
    snapshot = daemon.snapshot()
    assert snapshot.devices[3].ecc.mem_uncorrected_total == 1
    assert snapshot.injected_faults == (fault,) == fault_calls.list_faults(daemon.socket)
    wait_until(lambda: told_findings(daemon) == {FindingKind.ECC_UNCORRECTED: True})
    assert fault_calls.heal(daemon.socket, [fault.number]) == 1
    wait_until(lambda: not told_findings(daemon))
    assert daemon.snapshot().injected_faults == ()


def test_corrected_errors_grow_into_a_finding_and_again_when_they_were_healed(daemon: RunningDaemon) -> None:
    for _ in range(2):
        daemon.next_snapshot()
        fault_calls.inject(daemon.socket, [FaultRequest("ecc-corrected", device_index=0, amount=40)])
        wait_until(lambda: told_findings(daemon) == {FindingKind.ECC_CORRECTED: True})
        fault_calls.heal(daemon.socket)
        wait_until(lambda: not told_findings(daemon))


def test_a_fault_ends_by_itself(daemon: RunningDaemon) -> None:
    (fault,) = fault_calls.inject(daemon.socket, [FaultRequest("dma-abort", device_index=0, for_seconds=0.01)])
    (ended,) = wait_until(lambda: [f for f in fault_calls.list_faults(daemon.socket) if f.state is FaultState.OVER])
    assert ended.number == fault.number
    assert ended.began_at_unix_seconds is not None
    assert ended.ended_at_unix_seconds == pytest.approx(ended.began_at_unix_seconds + 0.01)


def inject_into(daemon: RunningDaemon, holder: Attachment, kind: str) -> tuple[Any, InjectedFault]:
    """What a holder of cores is told of a fault, which it says it knows; and the fault."""
    with ThreadPoolExecutor(1) as another:
        asking = another.submit(fault_calls.inject, daemon.socket, [FaultRequest(kind, device_index=0)])
        told = json.loads(holder.connection.recv(4096).removeprefix(b"fault "))
        holder.connection.send(b"armed %d\n" % told["number"])
        (injected,) = asking.result()
    assert injected.number == told["number"]
    return told, injected


def test_injecting_waits_until_the_process_knows(daemon: RunningDaemon, attached: Attachment) -> None:
    attached.attach()
    told, injected = inject_into(daemon, attached, "dma-abort")
    assert (told["kind"], told["cores"]) == ("dma-abort", [[0, 0, 0], [1, 0, 1]])
    met = b"met %d 1\n" % injected.number
    attached.connection.send(met + b"told %d 1\n" % injected.number + b"x" * 10_000 + b"\n" + met)
    (fault,) = wait_until(lambda: [f for f in fault_calls.list_faults(daemon.socket) if f.met_total == 2])
    assert fault.state is FaultState.HOLDS
    assert daemon.find(os.getpid()) is not None


def test_observers_are_told_nothing(daemon: RunningDaemon, attached: Attachment) -> None:
    holder = Attachment(daemon)
    holder.attach(core_count=1)
    inject_into(daemon, holder, "execution-unit-lost")
    attached.connection.setblocking(False)
    with pytest.raises(BlockingIOError):
        attached.connection.recv(1, socket.MSG_PEEK)
    holder.close()


@pytest.mark.parametrize(
    ("requests", "code", "text"),
    [
        ([{"kind": "nonsense", "device_index": 0}], Status.INVALID_ARGUMENT, "'nonsense' is no kind of fault"),
        ([{"kind": "x" * 10_000, "device_index": 0}], Status.INVALID_ARGUMENT, "longer than 64"),
        ([{"kind": "dma-abort", "device_index": 0}] * 1001, Status.INVALID_ARGUMENT, "more than 1000 faults"),
        ([{"kind": "dma-abort", "device_index": 99}], Status.NOT_FOUND, "no device 99"),
    ],
)
def test_rubbish_injects_nothing(
    daemon: RunningDaemon, requests: list[dict[str, object]], code: int, text: str
) -> None:
    asked = [neuron_pb2.FaultRequest(kind="ecc-corrected", device_index=1)]
    asked += [neuron_pb2.FaultRequest(**request) for request in requests]  # type: ignore[arg-type]
    with pytest.raises(RpcError, match=text) as refused:
        daemon.call(INJECT, neuron_pb2.InjectFaultsRequest(faults=asked))
    assert refused.value.code == code
    assert daemon.snapshot().injected_faults == ()


def test_there_is_nothing_to_heal_of_a_number_that_is_not_there(daemon: RunningDaemon) -> None:
    with pytest.raises(UserError, match="there is no fault 4711") as refused:
        fault_calls.heal(daemon.socket, [4711])
    assert refused.value.exit_code == 6
    assert fault_calls.heal(daemon.socket) == 0


def test_faults_are_for_simulated_devices(start_daemon: StartDaemon) -> None:
    with DriverTree("inf2.xlarge") as tree:
        daemon = start_daemon(*tree.flags, "--interval", "0.05")
        with pytest.raises(UserError, match="its devices are not simulated") as refused:
            fault_calls.inject(daemon.socket, [FaultRequest("dma-abort", device_index=0)])
        assert refused.value.exit_code == 1


@needs_two_users
def test_faults_are_for_the_user_of_the_daemon(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    Path(daemon.socket).chmod(0o666)
    Path(daemon.socket).parent.chmod(0o755)
    asks = (
        "import os, sys, grpc; from neurontools.rpc import fault_calls\n"
        "from neurontools.faults.requests import FaultRequest\n"
        f"os.setgroups([]); os.setgid({HOSTILE}); os.setuid({HOSTILE})\n"
        "fault_calls.inject(sys.argv[1], [FaultRequest('dma-abort', device_index=0)])"
    )
    done = run_to_end([sys.executable, "-c", asks, daemon.socket], env={"PYTHONPATH": PYTHONPATH})
    assert "refuses: only the user of the daemon may inject" in done.stderr
    assert successful_attacks(Path(daemon.socket)) == successful_attacks(Path(f"{daemon.socket}.attach")) == []
    assert fault_calls.list_faults(daemon.socket) == ()


def test_every_kind_can_be_injected_but_the_loss_of_a_host_that_is_none_of_a_fleet(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn2.48xlarge", "--interval", "0.05")
    names = [kind.name for kind in KINDS.values() if not kind.loses_host]
    made = fault_calls.inject(daemon.socket, [FaultRequest(name, device_index=0) for name in names])
    assert [fault.kind for fault in made] == names
    assert fault_calls.heal(daemon.socket) == len(names)
    with pytest.raises(UserError, match="it is not part of a simulated fleet; see neuron-fleet-sim"):
        fault_calls.inject(daemon.socket, [FaultRequest("host-lost")])


def test_faults_outlast_a_kill_of_the_daemon_and_healed_ones_do_not(start_daemon: StartDaemon, tmp_path: Path) -> None:
    flags = ("--simulate", "trn1.32xlarge", "--interval", "0.05", "--state-directory", str(tmp_path / "state"))
    first = start_daemon(*flags)
    healed, kept = (fault_calls.inject(first.socket, [FaultRequest("hbm-uncorrectable", index)])[0] for index in (0, 1))
    fault_calls.heal(first.socket, [healed.number])
    (shown,) = fault_calls.list_faults(first.socket)
    wait_until(lambda: b'"number":1,' not in (tmp_path / "state" / FAULTS_FILE).read_bytes())
    first.stop(signal.SIGKILL)
    second = start_daemon(*flags)
    assert [fault.number for fault in fault_calls.list_faults(second.socket)] == [kept.number]
    assert second.snapshot().devices[1].ecc == EccCounters(0, 1, 0, 0, 0)
    wait_until(lambda: told_findings(second) == {FindingKind.ECC_UNCORRECTED: True})
    (restored,) = fault_calls.list_faults(second.socket)
    assert restored.injected_by_pid == shown.injected_by_pid == os.getpid()
    assert abs(restored.injected_at_unix_seconds - shown.injected_at_unix_seconds) < 1
    fault_calls.heal(second.socket)
    second.stop()
    assert fault_calls.list_faults(start_daemon(*flags).socket) == ()


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"device_count": NaN}', b"\xff", b"[" * 100_000])
def test_a_state_file_that_is_none_is_told_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / FAULTS_FILE
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        file = FaultsFile(str(tmp_path))
    assert file.document is None
    assert [record.getMessage() for record in caplog.records] == [f"{path}: not restored: it is not a JSON object"]
    file.write({"faults": []})
    file.close()
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b'{"faults":[]}', 0o600)


def test_state_files_that_others_may_have_placed_are_not_restored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / FAULTS_FILE
    path.write_bytes(b"{}")
    path.chmod(0o666)
    with caplog.at_level(logging.WARNING):
        file = open_state_file(str(tmp_path), None, "the injected faults", FaultsFile)
        assert file is not None
        assert file.document is None
        assert open_state_file(str(tmp_path), None, "the injected faults", FaultsFile) is None, "one daemon at a time"
        file.close()
        path.rename(tmp_path / "elsewhere")
        path.symlink_to("elsewhere")
        assert open_state_file(str(tmp_path), None, "the injected faults", FaultsFile) is None
    told = [record.getMessage().removeprefix(str(tmp_path)) for record in caplog.records]
    assert told[0] == f"/{FAULTS_FILE}: not restored: it is too large, or other users may change it"
    assert told[1].startswith(": another daemon keeps the injected faults there")
    assert told[2].startswith(": the injected faults is kept only in memory: ")
    assert (tmp_path / "elsewhere").read_bytes() == b"{}"


@needs_two_users
def test_another_user_can_neither_change_nor_place_the_files_of_the_state() -> None:
    with public_directory() as place:
        path = place / "state" / FAULTS_FILE
        EndedFile(str(path.parent)).close()
        open_audit_file(str(path.parent), None).close()
        path.parent.chmod(0o755)
        assert successful_attacks(path.with_name(ENDED_FILE)) == successful_attacks(path.with_name("audit.jsonl")) == []
        for owner in (os.geteuid(), HOSTILE):
            file = FaultsFile(str(path.parent))
            file.write({"faults": []})
            file.close()
            assert successful_attacks(path) == []
            os.chown(path, owner, -1)
            file = FaultsFile(str(path.parent))
            assert file.document == (None if owner == HOSTILE else {"faults": []})
            file.close()


class Host:
    """Faults on two devices; `said` are the lines to processes, `logged` those of the kernel."""

    def __init__(self, shape: Any = TRN1) -> None:
        self.now = 100.0
        self.said: list[tuple[str, bytes]] = []
        self.logged: list[HardwareError] = []
        self.healed: list[tuple[Any, ...]] = []
        self.ledger = CoreAllocator(shape)
        self.faults = FaultInjector(
            self.ledger,
            FaultEffects(
                lambda: self.now,
                lambda seconds: seconds + 1000.0,
                send=lambda token, line: self.said.append((token, line)),
                log_error=self.logged.append,
                on_healed=self._take_healed,
            ),
        )
        self.counts = self.faults.counts

    def _take_healed(self, faults: Sequence[InjectedFault], *rest: Any) -> None:
        self.healed += [(fault.number, fault.met_total, *rest) for fault in faults]

    def attach(self, token: str, first: int, count: int = 1) -> str:
        entered(self.ledger, token)
        self.ledger.attach(token, CoreRequest(first, count))
        self.faults.send_active_faults(token)
        return token

    def inject(self, kind: str, **asked: Any) -> int:
        (fault,) = self.faults.inject([FaultRequest(kind, **asked)])
        return fault.number

    def told_to(self, token: str) -> list[Any]:
        """What a process was told since this was last asked: faults as their object, the end of one as its number."""
        told = [line for to, line in self.said if to == token]
        self.said = [each for each in self.said if each[0] != token]
        return [json.loads(line[6:]) if line.startswith(b"fault ") else int(line[5:]) for line in told]

    def meets(self, token: str, number: int, local: int = 0) -> None:
        self.faults.handle_line(token, b"met %d %d" % (number, local))
        self.faults.handle_line(token, b"told %d %d" % (number, local))

    def state(self, number: int) -> FaultState:
        return next(fault.state for fault in self.faults.shown if fault.number == number)


@pytest.fixture
def host() -> Host:
    return Host()


def test_an_uncorrectable_error_is_counted_at_once_and_logged_when_a_process_meets_it(host: Host) -> None:
    number = host.inject("hbm-uncorrectable", device_index=1)
    assert host.counts.ecc.get(1) == EccCounters(mem_uncorrected_total=1)
    assert host.counts.ecc.get(0) is None
    assert not host.logged
    token = host.attach("a", 3)
    (told,) = host.told_to(token)
    assert (told["kind"], told["cores"], told["after_executions"]) == ("hbm-uncorrectable", [[0, 1, 1]], 0)
    host.meets(token, number)
    assert host.counts.status.get(3) == StatusCounters(hw_hbm_ue_error_total=1)
    assert host.logged == [HardwareError("HBM_UNCORRECTABLE_ERROR", 1, 1)]


def test_what_waits_for_an_execution_leaves_no_mark_before_it(host: Host) -> None:
    a, b = host.attach("a", 0), host.attach("b", 1)
    number = host.inject("hbm-uncorrectable", device_index=0, after_executions=50)
    assert (host.state(number), host.counts.ecc.get(0)) == (FaultState.WAITING, None)
    assert [told["after_executions"] for told in (*host.told_to(a), *host.told_to(b))] == [50, 50]
    host.meets(a, number)
    assert (host.state(number), host.counts.ecc.get(0)) == (FaultState.HOLDS, EccCounters(mem_uncorrected_total=1))
    assert [told["after_executions"] for told in host.told_to(b)] == [0], "it is there for the others now"


def test_what_one_execution_meets_is_over_then(host: Host) -> None:
    a, b = host.attach("a", 0), host.attach("b", 1)
    number = host.inject("out-of-bounds", device_index=0)
    host.told_to(a), host.told_to(b)
    host.meets(a, number)
    assert host.state(number) is FaultState.OVER
    assert host.told_to(b) == [number]
    later = host.attach("c", 2)
    assert host.told_to(later) == []


def test_what_outlives_the_process_is_met_by_the_next(host: Host) -> None:
    number = host.inject("dma-abort", neuroncore_index=0, after_executions=7)
    first = host.attach("a", 0)
    host.meets(first, number)
    host.ledger.leave(first)
    host.told_to(first)
    second = host.attach("b", 0)
    assert [told["after_executions"] for told in host.told_to(second)] == [0]
    host.meets(second, number)
    assert host.counts.status.get(0) == StatusCounters(hw_dma_abort_error_total=2)


def test_a_fault_meets_only_the_cores_it_is_on(host: Host) -> None:
    token = host.attach("a", 0, 3)
    number = host.inject("dma-abort", neuroncore_index=2)
    (told,) = host.told_to(token)
    assert told["cores"] == [[2, 1, 0]]
    host.meets(token, number, local=1)
    assert (host.state(number), host.faults.shown[0].met_total) == (FaultState.HOLDS, 0)


def test_the_processes_at_both_ends_of_a_link_meet_its_fault(host: Host) -> None:
    first, last = host.attach("a", 1), host.attach("b", 2)
    host.inject("slow-link", device_index=1, peer_device_index=0)
    assert host.faults.shown[0].device_indices == (0, 1)
    assert [told["devices"] for token in (first, last) for told in host.told_to(token)] == [[0, 1], [0, 1]]
    with pytest.raises(NoTarget, match="no device 2"):
        host.inject("slow-link", device_index=1, peer_device_index=2)


def test_a_logical_core_of_two_is_counted_on_its_first() -> None:
    host = Host(TRN2)
    token = host.attach("a", 5)
    number = host.inject("dma-abort", neuroncore_index=5)
    (told,) = host.told_to(token)
    assert told["cores"] == [[0, 1, 1]]
    host.meets(token, number)
    assert [host.counts.status.get(core) is None for core in (10, 11)] == [False, True]


def test_time_begins_and_ends_faults(host: Host) -> None:
    token = host.attach("a", 0)
    number = host.inject("hbm-uncorrectable", device_index=0, after_seconds=5.0, for_seconds=2.0)
    assert [host.faults.next_seconds] == [105.0]
    assert host.told_to(token) == []
    host.now = 105.0
    host.faults.advance()
    assert host.state(number) is FaultState.HOLDS
    assert len(host.told_to(token)) == 1
    assert [host.faults.next_seconds] == [107.0]
    host.now = 107.0
    host.faults.advance()
    assert host.state(number) is FaultState.OVER
    assert [host.faults.next_seconds] == [None]
    assert host.told_to(token) == [number]
    assert host.counts.ecc.get(0) == EccCounters(mem_uncorrected_total=1), "what happened has happened"


def test_healing_takes_the_traces_away(host: Host) -> None:
    token = host.attach("a", 0)
    numbers = [host.inject("hbm-uncorrectable", device_index=0), host.inject("ecc-corrected", device_index=0, amount=7)]
    host.meets(token, numbers[0])
    assert host.counts.ecc.get(0) == EccCounters(mem_uncorrected_total=1, mem_corrected_total=7)
    host.told_to(token)
    assert host.faults.heal([numbers[0]], by_uid=1000, by_pid=4321) == 1
    met_by = {(lease.pid, lease.attached_at_unix_seconds): False for lease in host.ledger.leases}
    assert host.healed == [(numbers[0], 1, 1000, 4321, met_by)], "with what had come of it, and to whom"
    assert host.counts.ecc.get(0) == EccCounters(mem_corrected_total=7)
    assert (host.counts.status.get(0), host.told_to(token)) == (None, [numbers[0]])
    assert host.faults.heal() == 1
    assert (host.counts.ecc.get(0), host.faults.shown) == (None, ())
    with pytest.raises(NoSuchFault, match="there is no fault 1"):
        host.faults.heal([1])


def with_faults() -> Host:
    """A host with a fault of each state, with counts of both kinds."""
    host = Host()
    host.attach("a", 0)
    host.meets("a", host.inject("hbm-uncorrectable", device_index=0))
    host.meets("a", host.inject("hang-compute", neuroncore_index=0))
    host.inject("slow-core", neuroncore_index=3, after_seconds=5.0, for_seconds=10.0)
    host.inject("ecc-corrected", device_index=1, amount=7)
    host.faults.heal([host.inject("bit-flip", device_index=1)])
    return host


def test_a_later_daemon_has_the_same_faults_and_goes_on_with_their_times() -> None:
    before, after = with_faults(), Host()
    after.now = 103.0
    after.faults.restore(json.loads(json.dumps(before.faults.state())))
    assert after.faults.shown == before.faults.shown
    assert (after.counts.ecc, after.counts.status) == (before.counts.ecc, before.counts.status)
    assert after.faults.next_seconds == 105.0
    told = after.told_to(after.attach("b", 0))
    assert [fault["kind"] for fault in told] == ["hbm-uncorrectable"], "the hang is over"
    assert after.inject("bit-flip", device_index=0) == 6, "no number comes twice"
    after.now = 116.0
    after.faults.advance()
    assert after.state(3) is FaultState.OVER
    after.faults.heal()
    assert (after.counts.ecc, after.counts.status) == ({}, {})


def mutants(value: Any) -> Iterator[Any]:
    """The document with one value in it replaced by others or left out."""
    yield from (None, "x", -1, 0.5, 1e300, 2**70, True, [], {})
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            copy = value.copy()
            for mutant in mutants(part):
                copy[key] = mutant
                yield copy
            del copy[key]
            yield copy


def test_whatever_a_state_file_holds_is_restored_or_refused_as_a_whole() -> None:
    state = json.loads(json.dumps(with_faults().faults.state()))
    restored = refused = 0
    for mutant in mutants(state):
        host = Host()
        try:
            host.faults.restore(mutant)
        except UnusableState:
            assert (host.faults.shown, host.counts.ecc, host.faults.next_seconds) == ((), {}, None)
            refused += 1
        else:
            json.dumps(host.faults.state(), allow_nan=False)
            host.attach("a", 0, 4)
            host.faults.heal()
            restored += 1
    assert restored > 50
    assert refused > 500


def test_a_process_is_asked_for_by_its_pid(host: Host) -> None:
    other, token = host.attach("b", 3), host.attach("a", 2)
    pid = host.ledger.find_lease(token).pid
    number = host.inject("execution-unit-lost", pid=pid)
    assert (len(host.told_to(token)), host.told_to(other)) == (1, [])
    assert host.faults.shown[0].device_indices == (1,)
    host.meets(other, number)
    assert host.faults.shown[0].met_total == 0


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"kind": "dma-abort", "device_index": 2}, "no device 2: this host has devices 0-1"),
        ({"kind": "dma-abort", "neuroncore_index": 4}, "no NeuronCore 4: this host has NeuronCores 0 to 3"),
        ({"kind": "dma-abort", "pid": 4711}, "PID 4711 holds no NeuronCores"),
    ],
)
def test_nothing_is_injected_when_a_target_is_not_there(host: Host, asked: dict[str, Any], text: str) -> None:
    with pytest.raises(NoTarget, match=text):
        host.faults.inject([FaultRequest("dma-abort", device_index=0), FaultRequest(**asked)])
    assert host.faults.shown == ()


def test_there_is_a_limit(host: Host) -> None:
    host.faults.inject([FaultRequest("ecc-corrected", device_index=0)] * MOST_FAULTS)
    with pytest.raises(TooMany, match="heal some first"):
        host.inject("ecc-corrected", device_index=0)


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"met 1 0", b"told 1 0", b"armed 1", b"met 1 9999"])))
def test_a_process_can_say_what_it_likes(lines: list[bytes]) -> None:
    host = Host()
    token = host.attach("a", 0)
    host.inject("dma-abort", neuroncore_index=0)
    for line in lines:
        host.faults.handle_line(token, line)
        host.faults.handle_line("nobody", line)
    assert host.faults.shown[0].met_total == lines.count(b"met 1 0")


def test_the_driver_says_which_part_is_unhealthy_where_it_tells_health(host: Host) -> None:
    host.inject("part-unhealthy", device_index=0, part="hbm")
    host.inject("link-down", device_index=0)
    assert host.faults.reported_health[0].unhealthy_components == ("hbm", "link_intraserver")
    assert host.faults.reported_health.get(1) is None
    silent = FaultInjector(CoreAllocator(TRN1), host.faults.effects, reports_health=False)
    with pytest.raises(NoTarget, match="reports no component health"):
        silent.inject([FaultRequest("part-unhealthy", device_index=0)])
    silent.inject([FaultRequest("link-down", device_index=0)])
    assert silent.reported_health.get(0) is None


def test_devices_and_reports_that_are_lost_come_back(host: Host) -> None:
    a, b = host.attach("a", 0), host.attach("b", 2)
    host.inject("device-lost", device_index=1, for_seconds=3.0)
    reports = host.inject("reports-lost", device_index=0)
    assert host.faults.lost_devices == {1}
    assert [host.faults.loses_reports(token) for token in (a, b)] == [True, False]
    host.now += 3.0
    host.faults.advance()
    host.faults.heal([reports])
    assert (host.faults.lost_devices, host.faults.loses_reports(a)) == (frozenset(), False)


def test_a_host_is_lost_with_what_is_still_to_come_as_it_is_then(host: Host) -> None:
    lost: list[Any] = []
    host.faults.effects.lose_host = lambda seconds, to_come: lost.append((seconds, to_come))
    host.inject("host-lost", after_seconds=10, for_seconds=30)
    host.inject("ecc-corrected", device_index=0, after_seconds=5)
    host.inject("ecc-corrected", device_index=1, after_seconds=60, amount=7)
    waiting = FaultRequest("bit-flip", device_index=0, after_executions=3)
    host.faults.inject([waiting])
    host.now += 12
    host.faults.advance()
    ((seconds, to_come),) = lost
    assert seconds == 30
    assert to_come == (FaultRequest("ecc-corrected", device_index=1, after_seconds=48.0, amount=7), waiting)
