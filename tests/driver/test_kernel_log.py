"""The kernel's log: records, the line of hardware errors, to the byte and back, and the lines of the driver."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.driver.kernel_log import (
    HARDWARE_ERRORS,
    HBM_ERROR,
    TERMINATE_INSTANCE,
    DriverEvent,
    DriverMessage,
    HardwareError,
    KernelRecord,
    parse_driver_line,
    parse_hardware_error,
    parse_kernel_record,
)
from neurontools.model import health


def test_a_record_has_the_form_of_dev_kmsg() -> None:
    record = KernelRecord(sequence=7, microseconds=1_500_000, text="nd00: a \\ and a\ttab")
    assert record.line() == b"3,7,1500000,-;nd00: a \\x5c and a\\x09tab\n"
    for line in (b" SUBSYSTEM=neuron\n", b"6,1,%d,-;a time of more than 64 bits\n" % 2**64):
        assert parse_kernel_record(line) is None
    assert parse_kernel_record(b"6,1,2,-,caller=T1;text\n") == KernelRecord(1, 2, "text", level=6)


@given(st.builds(KernelRecord, st.integers(0, 2**63), st.integers(0, 2**63), st.text(), st.integers(0, 7)))
def test_a_record_is_read_as_it_was_written(record: KernelRecord) -> None:
    line = record.line()
    assert line.count(b"\n") == 1
    read = parse_kernel_record(line)
    assert read is not None
    assert read.text == record.text.encode("utf-8", "replace").decode()
    assert (read.sequence, read.microseconds, read.level) == (record.sequence, record.microseconds, record.level)


@given(st.binary(), st.text(max_size=300))
def test_no_line_breaks_the_readers(line: bytes, text: str) -> None:
    record = parse_kernel_record(line)
    if record is not None:
        parse_hardware_error(record.text)
    parse_driver_line(text)


def test_the_line_that_is_documented_is_understood() -> None:
    documented = (
        "NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR instance-id=i-0b1 hostname=ip-10-0-0-1 nd-id=3 nc-id=1 "
        "serial-num=19fcda00f5ff6eb9 action=TERMINATE_INSTANCE"
    )
    error = HardwareError(HBM_ERROR, 3, 1, "i-0b1", "ip-10-0-0-1", "19fcda00f5ff6eb9", TERMINATE_INSTANCE)
    assert parse_hardware_error(documented) == error
    assert error.text("neuron:") == f"neuron: {documented}"


def test_node_agents_and_health_checks_find_the_line() -> None:
    for name, index in product(HARDWARE_ERRORS, (None, 0)):
        written = HardwareError(name, device_index=index, core_index=index)
        assert re.search(f".* NEURON_HW_ERR={name} .*", written.text())
        assert parse_hardware_error(written.text()) == written
        assert name in health.FINDING_NAMES


def test_other_lines_tell_of_no_hardware_error() -> None:
    assert parse_hardware_error("nd00: initiating device reset request 1") is None
    assert parse_hardware_error("NEURON_HW_ERR= nd-id=1") is None
    assert parse_hardware_error("neuron: NEURON_HW_ERR=DMA_ERROR nd-id=99999999 nc-id=x") == HardwareError("DMA_ERROR")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Neuron Driver Started with Version:2.24.7.0-abc", DriverMessage(DriverEvent.STARTED)),
        ("neuron: nd3: reset request 17 completed", DriverMessage(DriverEvent.RESET_DONE, 3)),
        ("nd3: reset request 17 failed", DriverMessage(DriverEvent.RESET_FAILED, 3)),
        ("nd12: reset request 1 was initiated, but failed to complete", DriverMessage(DriverEvent.RESET_FAILED, 12)),
        ("nd0: failed to initialize dma after reset", DriverMessage(DriverEvent.RESET_FAILED, 0)),
        ("nd0: failed to complete post reset configuration", DriverMessage(DriverEvent.RESET_FAILED, 0)),
        ("DMA completion timeout on nd07 for q 3 desc count 64", DriverMessage(DriverEvent.DMA_TIMEOUT, 7)),
        ("nd3: initiating device reset request 17", None),
        ("vnd3: reset request 17 completed", None),
        ("nd99999: reset request 17 completed", None),
        ("nd3: pid 77 failed to open", None),
        ("", None),
    ],
)
def test_lines_of_the_driver(text: str, told: DriverMessage | None) -> None:
    assert parse_driver_line(text) == told
