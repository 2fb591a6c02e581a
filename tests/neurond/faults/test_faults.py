"""What holds when: faults on a ledger, with a clock that the test sets and processes that it plays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.faults.faults import MOST_FAULTS, Faults, NoSuchFault, NoTarget, Surroundings, TooMany
from neurond.ownership.ledger import Ledger

from neurontools.faults.request import FaultRequest
from neurontools.kernel_log.hardware_error import HardwareError
from neurontools.model import EccCounters, FaultState, InjectedFault
from neurontools.nrt.core_request import CoreRequest
from tests.harness.ledger_parts import TRN1, TRN2, entered


class Host:
    """Faults on two devices; `said` are the lines to processes, `logged` those of the kernel."""

    def __init__(self, shape: Any = TRN1) -> None:
        self.now = 100.0
        self.said: list[tuple[str, bytes]] = []
        self.logged: list[HardwareError] = []
        self.healed: list[tuple[int, int, int | None, int | None]] = []
        self.ledger = Ledger(shape)
        self.faults = Faults(
            self.ledger,
            Surroundings(
                lambda: self.now,
                lambda seconds: seconds + 1000.0,
                say=lambda token, line: self.said.append((token, line)),
                log=self.logged.append,
                healed=self._take_healed,
            ),
        )

    def _take_healed(self, faults: Sequence[InjectedFault], uid: int | None, pid: int | None) -> None:
        self.healed += [(fault.number, fault.met_total, uid, pid) for fault in faults]

    def attach(self, token: str, first: int, count: int = 1) -> str:
        entered(self.ledger, token)
        self.ledger.attach(token, CoreRequest(first, count))
        self.faults.greet(token)
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
        self.faults.heard(token, b"met %d %d" % (number, local))
        self.faults.heard(token, b"told %d %d" % (number, local))

    def state(self, number: int) -> FaultState:
        return next(fault.state for fault in self.faults.shown if fault.number == number)


@pytest.fixture
def host() -> Host:
    return Host()


def test_an_uncorrectable_error_is_counted_at_once_and_logged_when_a_process_meets_it(host: Host) -> None:
    number = host.inject("hbm-uncorrectable", device_index=1)
    assert host.faults.ecc(1) == EccCounters(mem_uncorrected_total=1)
    assert host.faults.ecc(0) is None
    assert not host.logged
    token = host.attach("a", 3)
    (told,) = host.told_to(token)
    assert (told["kind"], told["cores"], told["after_executions"]) == ("hbm-uncorrectable", [[0, 1, 1]], 0)
    host.meets(token, number)
    status = host.faults.status(3)
    assert status is not None
    assert status.hw_hbm_ue_error_total == 1
    assert host.logged == [HardwareError("HBM_UNCORRECTABLE_ERROR", 1, 1)]


def test_what_waits_for_an_execution_leaves_no_mark_before_it(host: Host) -> None:
    a, b = host.attach("a", 0), host.attach("b", 1)
    number = host.inject("hbm-uncorrectable", device_index=0, after_executions=50)
    assert (host.state(number), host.faults.ecc(0)) == (FaultState.WAITING, None)
    assert [told["after_executions"] for told in (*host.told_to(a), *host.told_to(b))] == [50, 50]
    host.meets(a, number)
    assert (host.state(number), host.faults.ecc(0)) == (FaultState.HOLDS, EccCounters(mem_uncorrected_total=1))
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
    status = host.faults.status(0)
    assert status is not None
    assert status.hw_dma_abort_error_total == 2


def test_a_fault_meets_only_the_cores_it_is_on(host: Host) -> None:
    token = host.attach("a", 0, 3)
    number = host.inject("dma-abort", neuroncore_index=2)
    (told,) = host.told_to(token)
    assert told["cores"] == [[2, 1, 0]]
    host.meets(token, number, local=1)
    assert host.state(number) is FaultState.HOLDS
    assert host.faults.shown[0].met_total == 0


def test_a_logical_core_of_two_is_counted_on_its_first() -> None:
    host = Host(TRN2)
    token = host.attach("a", 5)
    number = host.inject("dma-abort", neuroncore_index=5)
    (told,) = host.told_to(token)
    assert told["cores"] == [[0, 1, 1]]
    host.meets(token, number)
    assert host.faults.status(10) is not None
    assert host.faults.status(11) is None


def test_time_begins_and_ends_faults(host: Host) -> None:
    token = host.attach("a", 0)
    number = host.inject("hbm-uncorrectable", device_index=0, after_seconds=5.0, for_seconds=2.0)
    assert host.faults.next_seconds == 105.0
    assert host.told_to(token) == []
    host.now = 105.0
    host.faults.advance()
    assert host.state(number) is FaultState.HOLDS
    assert len(host.told_to(token)) == 1
    assert host.faults.next_seconds == 107.0
    host.now = 107.0
    host.faults.advance()
    assert host.state(number) is FaultState.OVER
    assert [host.faults.next_seconds] == [None]
    assert host.told_to(token) == [number]
    assert host.faults.ecc(0) == EccCounters(mem_uncorrected_total=1), "what happened has happened"


def test_healing_takes_the_traces_away(host: Host) -> None:
    token = host.attach("a", 0)
    numbers = [host.inject("hbm-uncorrectable", device_index=0), host.inject("ecc-corrected", device_index=0, amount=7)]
    host.meets(token, numbers[0])
    assert host.faults.ecc(0) == EccCounters(mem_uncorrected_total=1, mem_corrected_total=7)
    host.told_to(token)
    assert host.faults.heal([numbers[0]], by_uid=1000, by_pid=4321) == 1
    assert host.healed == [(numbers[0], 1, 1000, 4321)], "with what had come of it"
    assert host.faults.ecc(0) == EccCounters(mem_corrected_total=7)
    assert (host.faults.status(0), host.told_to(token)) == (None, [numbers[0]])
    assert host.faults.heal() == 1
    assert (host.faults.ecc(0), host.faults.shown) == (None, ())
    with pytest.raises(NoSuchFault, match="there is no fault 1"):
        host.faults.heal([1])


def test_a_process_is_asked_for_by_its_pid(host: Host) -> None:
    token, other = host.attach("a", 2), host.attach("b", 3)
    pid = host.ledger.known(token).pid
    number = host.inject("execution-unit-lost", pid=pid)
    assert (len(host.told_to(token)), host.told_to(other)) == (1, [])
    assert host.faults.shown[0].device_indices == (1,)
    host.meets(other, number)
    assert host.faults.shown[0].met_total == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"device_index": 2}, "no device 2: there are devices 0 to 1"),
        ({"neuroncore_index": 4}, "no NeuronCore 4: there are NeuronCores 0 to 3"),
        ({"pid": 4711}, "PID 4711 holds no NeuronCores"),
    ],
)
def test_nothing_is_injected_when_a_target_is_not_there(host: Host, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(NoTarget, match=said):
        host.faults.inject([FaultRequest("dma-abort", device_index=0), FaultRequest("dma-abort", **asked)])
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
        host.faults.heard(token, line)
        host.faults.heard("nobody", line)
    assert host.faults.shown[0].met_total == lines.count(b"met 1 0")


def test_a_device_that_is_lost_comes_back(host: Host) -> None:
    number = host.inject("device-lost", device_index=1, for_seconds=3.0)
    assert host.faults.lost_devices == {1}
    host.now += 3.0
    host.faults.advance()
    assert (host.state(number), host.faults.lost_devices) == (FaultState.OVER, frozenset())


def test_the_driver_says_which_part_is_unhealthy_where_it_tells_health(host: Host) -> None:
    host.inject("part-unhealthy", device_index=0, part="hbm")
    host.inject("link-down", device_index=0)
    told = host.faults.reported_health(0)
    assert told is not None
    assert told.unhealthy_components == ("hbm", "link_intraserver")
    assert host.faults.reported_health(1) is None
    silent = Faults(Ledger(TRN1), host.faults.around, tells_health=False)
    with pytest.raises(NoTarget, match="tells no health of their parts"):
        silent.inject([FaultRequest("part-unhealthy", device_index=0)])
    silent.inject([FaultRequest("link-down", device_index=0)])
    assert silent.reported_health(0) is None


def test_reports_are_lost_of_the_processes_on_a_device(host: Host) -> None:
    a, b = host.attach("a", 0), host.attach("b", 2)
    number = host.inject("reports-lost", device_index=0)
    assert (host.faults.loses_reports(a), host.faults.loses_reports(b)) == (True, False)
    host.faults.heal([number])
    assert not host.faults.loses_reports(a)


def test_a_host_is_lost_with_what_is_still_to_come_as_it_is_then(host: Host) -> None:
    lost: list[Any] = []
    host.faults.around.lose_host = lambda seconds, to_come: lost.append((seconds, to_come))
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


def test_a_host_that_cannot_be_lost_says_so(host: Host) -> None:
    with pytest.raises(NoTarget, match="see neuron-fleet-sim"):
        host.inject("host-lost")
