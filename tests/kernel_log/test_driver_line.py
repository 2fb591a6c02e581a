from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.kernel_log.driver_line import DriverLine, Told, driver_line
from neurontools.kernel_log.hardware_error import NAMES
from neurontools.query import problems


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Neuron Driver Started with Version:2.24.7.0-abc", DriverLine(Told.STARTED)),
        ("neuron: nd3: reset request 17 completed", DriverLine(Told.RESET_DONE, 3)),
        ("nd3: reset request 17 failed", DriverLine(Told.RESET_FAILED, 3)),
        ("nd12: reset request 1 was initiated, but failed to complete", DriverLine(Told.RESET_FAILED, 12)),
        ("nd0: failed to initialize dma after reset", DriverLine(Told.RESET_FAILED, 0)),
        ("nd0: failed to complete post reset configuration", DriverLine(Told.RESET_FAILED, 0)),
        ("DMA completion timeout on nd07 for q 3 desc count 64", DriverLine(Told.DMA_TIMEOUT, 7)),
        ("nd3: initiating device reset request 17", None),
        ("vnd3: reset request 17 completed", None),
        ("nd99999: reset request 17 completed", None),
        ("nd3: pid 77 failed to open", None),
        ("", None),
    ],
)
def test_lines_of_the_driver(text: str, told: DriverLine | None) -> None:
    assert driver_line(text) == told


@given(st.text(max_size=300))
def test_no_text_is_a_fault(text: str) -> None:
    driver_line(text)


def test_health_checks_know_the_names_of_the_kernel_log() -> None:
    assert set(NAMES) <= set(problems.NAMES)
