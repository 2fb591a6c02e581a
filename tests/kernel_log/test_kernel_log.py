"""The kernel's log: records and the line of hardware errors, to the byte and back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.kernel_log.hardware_error import HBM, NAMES, TERMINATE_INSTANCE, HardwareError, hardware_error
from neurontools.kernel_log.record import KernelRecord, parsed


def test_a_record_has_the_form_of_dev_kmsg() -> None:
    record = KernelRecord(sequence=7, microseconds=1_500_000, text="nd00: a \\ and a\ttab")
    assert record.line() == b"3,7,1500000,-;nd00: a \\x5c and a\\x09tab\n"


@given(st.builds(KernelRecord, st.integers(0, 2**63), st.integers(0, 2**63), st.text(), st.integers(0, 7)))
def test_a_record_is_read_as_it_was_written(record: KernelRecord) -> None:
    line = record.line()
    assert line.count(b"\n") == 1
    read = parsed(line)
    assert read is not None
    assert read.text == record.text.encode("utf-8", "replace").decode()
    assert (read.sequence, read.microseconds, read.level) == (record.sequence, record.microseconds, record.level)


@given(st.binary())
def test_no_line_breaks_the_reader(line: bytes) -> None:
    record = parsed(line)
    if record is not None:
        hardware_error(record.text)


def test_variables_of_a_record_are_no_record() -> None:
    assert parsed(b" SUBSYSTEM=neuron\n") is None
    assert parsed(b"6,1,2,-,caller=T1;text\n") == KernelRecord(1, 2, "text", level=6)


def test_the_line_that_is_documented_is_understood() -> None:
    documented = (
        "NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR instance-id=i-0b1 hostname=ip-10-0-0-1 nd-id=3 nc-id=1 "
        "serial-num=19fcda00f5ff6eb9 action=TERMINATE_INSTANCE"
    )
    error = HardwareError(HBM, 3, 1, "i-0b1", "ip-10-0-0-1", "19fcda00f5ff6eb9", TERMINATE_INSTANCE)
    assert hardware_error(documented) == error
    assert error.text("neuron:") == f"neuron: {documented}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("index", [None, 0])
def test_node_agents_find_the_line(name: str, index: int | None) -> None:
    written = HardwareError(name, device_index=index, core_index=index)
    assert re.search(f".* NEURON_HW_ERR={name} .*", written.text())
    assert hardware_error(written.text()) == written


def test_other_lines_tell_of_no_hardware_error() -> None:
    assert hardware_error("nd00: initiating device reset request 1") is None
    assert hardware_error("NEURON_HW_ERR= nd-id=1") is None
    assert hardware_error("neuron: NEURON_HW_ERR=DMA_ERROR nd-id=99999999 nc-id=x") == HardwareError("DMA_ERROR")
