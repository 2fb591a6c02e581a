"""Who gets which NeuronCores, and what those are told who get none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from neurond.ownership import ledger
from neurond.ownership.ledger import Ledger
from neurond.ownership.shape import Shape

from neurontools.nrt.core_request import CoreRequest
from tests.harness.ledger_parts import TRN1, TRN2, entered, report_of, tensors


def test_all_cores_when_nothing_is_asked_for() -> None:
    host = Ledger(TRN1)
    holding = host.attach(entered(host, "a"), CoreRequest())
    assert (holding.logical_cores, holding.physical_cores()) == (range(4), range(4))
    assert holding.devices(TRN1) == (0, 1)


def test_a_process_without_variables_is_refused_when_one_core_is_taken() -> None:
    host = Ledger(TRN1)
    host.attach(entered(host, "a", 77), CoreRequest(1, 1))
    with pytest.raises(ledger.CoresUnavailable) as refused:
        host.attach(entered(host, "b"), CoreRequest())
    assert str(refused.value) == (
        "NeuronCore(s) not available - Requested:nc0-nc3 Available:3; held by PID 77; end them or ask for other cores"
    )


def test_the_first_run_that_fits() -> None:
    host = Ledger(Shape(4, 2, 2, 100, 1, (1,)))
    host.attach(entered(host, "a"), CoreRequest(1, 1))
    host.attach(entered(host, "b"), CoreRequest(4, 1))
    assert host.attach(entered(host, "c"), CoreRequest(count=2)).first == 2
    assert host.attach(entered(host, "d"), CoreRequest(count=1)).first == 0
    assert host.attach(entered(host, "e"), CoreRequest(count=3)).first == 5


def test_free_cores_that_are_apart_are_not_enough() -> None:
    host = Ledger(TRN1)
    host.attach(entered(host, "a", 77), CoreRequest(1, 1))
    host.attach(entered(host, "b", 78), CoreRequest(3, 1))
    with pytest.raises(ledger.CoresUnavailable) as refused:
        host.attach(entered(host, "c"), CoreRequest(count=2))
    assert str(refused.value) == (
        "NeuronCore(s) not available - Requested:2 Available:2 (free ones are not contiguous); held by PID 77, 78; "
        "end them or ask for other cores"
    )


def test_the_words_of_the_runtime_for_busy_cores() -> None:
    """runtime.md, section 5: the texts that users and scripts know."""
    old, new = Ledger(TRN1), Ledger(TRN2)
    old.attach(entered(old, "a"), CoreRequest())
    new.attach(entered(new, "a"), CoreRequest())
    for host, request, text in (
        (old, CoreRequest(1, 1), "NeuronCore(s) not available - Requested:nc1-nc1 Available:0"),
        (old, CoreRequest(count=1), "NeuronCore(s) not available - Requested:1 Available:0"),
        (
            new,
            CoreRequest(0, 1),
            (
                "Logical Neuron Core(s) not available - Requested:lnc0-lnc0 Available:0 Logical Core size:2 "
                "(cores busy, ret=-16)"
            ),
        ),
    ):
        with pytest.raises(ledger.CoresUnavailable) as refused:
            host.attach(entered(host, f"b{text}"), request)
        assert str(refused.value).startswith(text)


def test_at_most_four_holders_are_named() -> None:
    host = Ledger(Shape(8, 1, 1, 100, 1, (1,)))
    for number in range(6):
        host.attach(entered(host, str(number), 10 + number), CoreRequest(count=1))
    with pytest.raises(ledger.CoresUnavailable, match="held by PID 10, 11, 12, 13 and 2 more;"):
        host.attach(entered(host, "z"), CoreRequest())


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (CoreRequest(4, 1), "NEURON_RT_VISIBLE_CORES=4-4: this host has NeuronCores 0-3"),
        (CoreRequest(3, 2), "NEURON_RT_VISIBLE_CORES=3-4: this host has NeuronCores 0-3"),
        (CoreRequest(2**32 - 1, 2**32 - 1), "this host has NeuronCores 0-3"),
        (CoreRequest(0, 0), "this host has NeuronCores 0-3"),
        (CoreRequest(count=5), "NEURON_RT_NUM_CORES=5: this host has 4 NeuronCores; ask for 1 to 4"),
        (CoreRequest(count=0), "NEURON_RT_NUM_CORES=0: this host has 4 NeuronCores"),
        (CoreRequest(logical_neuroncore_config=2), "NEURON_LOGICAL_NC_CONFIG=2 is not possible on this hardware"),
    ],
)
def test_what_the_host_can_never_have(request_: CoreRequest, text: str) -> None:
    host = Ledger(TRN1)
    host.attach(entered(host, "a"), CoreRequest(0, 1))
    with pytest.raises(ledger.ImpossibleRequest) as refused:
        host.attach(entered(host, "b"), request_)
    assert text in str(refused.value)


def test_processes_of_different_lncs_share_a_host() -> None:
    host = Ledger(TRN2)
    pairs = host.attach(entered(host, "pairs"), CoreRequest(count=2))
    assert (pairs.lnc, pairs.physical_cores()) == (2, range(4))
    singles = host.attach(entered(host, "singles"), CoreRequest(count=3, logical_neuroncore_config=1))
    assert (singles.lnc, singles.logical_cores, singles.physical_cores()) == (1, range(4, 7), range(4, 7))
    # Core 7 is free, but its partner isn't: the next pair begins at 8.
    assert host.attach(entered(host, "more"), CoreRequest(count=1)).physical_cores() == range(8, 10)
    with pytest.raises(ledger.CoresUnavailable, match="Requested:lnc3-lnc3 Available:0"):
        host.attach(entered(host, "half"), CoreRequest(3, 1))


def test_a_process_attaches_once() -> None:
    host = Ledger(TRN1)
    host.attach(entered(host, "a", 7), CoreRequest(0, 1))
    with pytest.raises(ledger.AlreadyAttached, match="PID 7 holds cores already"):
        host.attach("a", CoreRequest(1, 1))
    with pytest.raises(ledger.AlreadyAttached):
        host.enter("a", 8, 0, 1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda host: host.attach("?", CoreRequest()),
        lambda host: host.report("?", report_of({})),
        lambda host: host.known("?"),
    ],
)
def test_an_unknown_token(call: Callable[[Ledger], object]) -> None:
    with pytest.raises(ledger.UnknownToken, match="connect to the attach socket"):
        call(Ledger(TRN1))


def test_leaving_twice_is_harmless() -> None:
    changes: list[None] = []
    host = Ledger(TRN1, lambda: changes.append(None))
    host.attach(entered(host, "a"), CoreRequest())
    host.leave("a")
    host.leave("a")
    assert len(changes) == 3
    assert not list(host.holdings)


def test_an_observer_reports_nothing() -> None:
    host = Ledger(TRN1)
    with pytest.raises(ledger.InvalidReport, match="holds no cores; call Attach before Report"):
        host.report(entered(host, "a"), report_of({}))


def test_what_a_process_brings_and_asks_for_is_kept() -> None:
    host = Ledger(TRN2)
    watching = host.enter("a", 71, 1000, 5.0)
    assert (watching.pid, watching.uid, watching.attached_at_unix_seconds, watching.lnc) == (71, 1000, 5.0, 2)
    assert (watching.tag, watching.runtime_version, watching.synthetic, watching.count) == ("71", None, False, 0)
    assert [host.owner(core) for core in range(16)] == [None] * 16
    holding = host.attach("a", CoreRequest(1, 1), "job", "2.34")
    assert (holding.tag, holding.runtime_version) == ("job", "2.34")
    assert [core for core in range(16) if host.owner(core) is holding] == [2, 3]
    assert list(host.holdings) == [holding]
    untold = host.attach(entered(host, "b", 72), CoreRequest(count=1))
    assert (untold.tag, untold.runtime_version) == ("72", "")
    assert host.enter("c", 73, 0, 6.0, synthetic=True).synthetic


def test_observers_of_the_same_process_are_no_reason_against_attaching() -> None:
    host = Ledger(TRN1)
    host.enter("watching", 7, 0, 1.0)
    assert host.attach(entered(host, "a", 7), CoreRequest(0, 1)).count == 1
    assert host.attach(entered(host, "b", 8), CoreRequest(1, 1)).count == 1


def test_every_change_of_ownership_is_told() -> None:
    changes: list[list[int]] = []
    host = Ledger(TRN1, lambda: changes.append([core for core in range(4) if host.owner(core)]))
    host.attach(entered(host, "a"), CoreRequest(1, 2))
    host.report("a", report_of({0: tensors(1)}))
    host.leave("a")
    assert changes == [[], [1, 2], []]


def test_a_core_beyond_those_of_the_process_is_refused_and_nothing_is_kept() -> None:
    host = Ledger(TRN1)
    holding = host.attach(entered(host, "a"), CoreRequest(0, 2))
    for index in (-1, 2):
        with pytest.raises(ledger.InvalidReport, match=f"core {index} is not one of the 2 cores of this process"):
            host.report("a", report_of({0: tensors(1), index: tensors(1)}))
    assert (holding.report, holding.cores) == (None, {})
    accepted = report_of({1: tensors(1)})
    host.report("a", accepted)
    assert holding.report is accepted


def test_both_lncs_of_the_hardware_are_named_to_who_asks_for_another() -> None:
    host = Ledger(TRN2)
    with pytest.raises(ledger.ImpossibleRequest, match=r"CONFIG=3 is not possible .*; set it to 1 or 2, or unset it"):
        host.attach(entered(host, "a"), CoreRequest(logical_neuroncore_config=3))


def test_a_core_that_is_not_there_is_refused_with_the_cores_that_are() -> None:
    host = Ledger(TRN1)
    with pytest.raises(ledger.ImpossibleRequest, match="NEURON_RT_VISIBLE_CORES=-1-1: this host has NeuronCores 0-3"):
        host.attach(entered(host, "a"), CoreRequest(-1, 3))
    assert host.attach("a", CoreRequest(3, 1)).logical_cores == range(3, 4)


def test_free_cores_are_enough_when_they_are_all_there_are() -> None:
    host = Ledger(TRN1)
    assert host.attach(entered(host, "a"), CoreRequest(count=4)).logical_cores == range(4)
    with pytest.raises(ledger.CoresUnavailable) as refused:
        host.attach(entered(host, "b", 72), CoreRequest(count=1))
    assert "not contiguous" not in str(refused.value)
    assert "and 0 more" not in str(refused.value)


def test_four_holders_are_all_named() -> None:
    host = Ledger(TRN1)
    for pid in (11, 12, 13, 14):
        host.attach(entered(host, str(pid), pid), CoreRequest(count=1))
    with pytest.raises(ledger.CoresUnavailable, match="held by PID 11, 12, 13, 14; end them"):
        host.attach(entered(host, "z"), CoreRequest(count=1))
