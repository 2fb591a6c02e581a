"""The HBM that the cores of a stack share."""

from __future__ import annotations

import pytest
from neurond.ownership import ledger
from neurond.ownership.holding import CoreReport
from neurond.ownership.ledger import Ledger
from neurond.ownership.shape import Shape

from neurontools import model
from neurontools.nrt.core_request import CoreRequest
from tests.harness.ledger_parts import TRN1, TRN2, entered, report_of, tensors


def test_a_stack_is_shared_by_all_who_allocate_from_it_wherever_it_is() -> None:
    """Two HBM stacks of four cores each, and processes with LNC 2: those on logical cores 2 and 3 share the second."""
    host = Ledger(Shape(1, 8, 2, 1000, 2, (1, 2)))
    both = host.attach(entered(host, "both", 71), CoreRequest(1, 2))
    last = host.attach(entered(host, "last", 72), CoreRequest(3, 1))
    assert (host.holders_of_stack(0), host.holders_of_stack(1)) == ([both], [both, last])
    host.report("both", report_of({0: tensors(1000), 1: tensors(600)}))
    assert [host.stack_bytes_of(both, stack) for stack in (0, 1)] == [1000, 600]
    with pytest.raises(ledger.OutOfDeviceMemory):
        host.report("last", report_of({0: tensors(401)}))
    host.report("last", report_of({0: tensors(400)}))
    with pytest.raises(ledger.OutOfDeviceMemory):
        host.report("both", report_of({1: tensors(601)}))
    with pytest.raises(ledger.OutOfDeviceMemory):
        host.report("both", report_of({0: tensors(1001)}))
    host.report("both", report_of({0: tensors(1)}))
    assert [host.stack_bytes_of(both, stack) for stack in (0, 1)] == [1, 600]


def test_all_cores_of_a_process_on_one_stack_count_together_those_too_that_a_report_leaves_out() -> None:
    host = Ledger(Shape(1, 4, 1, 1000, 1, (1,)))
    host.attach(entered(host, "a"), CoreRequest())
    host.report("a", report_of({0: tensors(600), 1: tensors(300)}))
    with pytest.raises(ledger.OutOfDeviceMemory):
        host.report("a", report_of({2: tensors(101)}))
    host.report("a", report_of({2: tensors(100)}))


def test_memory_that_is_not_told_takes_no_room() -> None:
    unknown = CoreReport(memory=model.DeviceMemory(*[None] * 11))
    host = Ledger(TRN1)
    holding = host.attach(entered(host, "a"), CoreRequest(0, 1))
    host.attach(entered(host, "b"), CoreRequest(1, 1))
    host.report("a", report_of({0: unknown}))
    assert host.stack_bytes_of(holding, 0) == 0
    host.report("b", report_of({0: tensors(TRN1.stack_bytes)}))


def test_a_core_that_a_report_leaves_out_keeps_what_it_had() -> None:
    host = Ledger(TRN1)
    holding = host.attach(entered(host, "a"), CoreRequest())
    host.report("a", report_of({0: tensors(5), 1: tensors(6)}))
    host.report("a", report_of({1: tensors(7)}))
    assert [holding.memory_of(index).tensors_bytes for index in range(4)] == [5, 7, None, None]


def test_memory_of_a_logical_core_is_shared_out_to_the_byte() -> None:
    host = Ledger(TRN2)
    holding = host.attach(entered(host, "a"), CoreRequest(0, 1))
    host.report("a", report_of({0: CoreReport(memory=model.DeviceMemory(tensors_bytes=7, constants_bytes=None))}))
    memories = [holding.memory_of(index) for index in (0, 1)]
    assert [memory.tensors_bytes for memory in memories] == [4, 3]
    assert [memory.constants_bytes for memory in memories] == [None, None]


def test_out_of_memory_tells_who_holds_the_stack() -> None:
    host = Ledger(TRN2)
    for token, pid, first in (("a", 71, 0), ("b", 72, 1)):
        host.enter(token, pid, 0, 1.0)
        host.attach(token, CoreRequest(first, 1, 1))
    host.report("a", report_of({0: tensors(600)}))
    host.report("b", report_of({0: tensors(400)}))
    with pytest.raises(ledger.OutOfDeviceMemory) as refused:
        host.report("b", report_of({0: tensors(401)}))
    headline, titles, *rows = str(refused.value).splitlines()
    assert headline.startswith("out of device memory: PID 72 asks for 401 B on device 0 HBM 0, which has 1000 B and")
    assert "400 B for it" in headline
    assert titles.split() == ["PID", "NEURONCORES", "BYTES", "SIZE"]
    assert [row.split()[:3] for row in rows] == [["71", "0-0", "600"], ["72", "1-1", "400"], ["72", "asks", "for"]]
    holding = host.known("b")
    assert holding.memory_of(1).tensors_bytes == 400, "what was accepted stays"
