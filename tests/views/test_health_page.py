"""The page of health: what was injected is listed there, and by whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.model import FaultState, InjectedFault
from neurontools.views.drawing.line import line_width
from neurontools.views.drawing.scene import Scene
from neurontools.views.health_page import health_page
from tests.harness.scenario_host import ScenarioHost

SNAPSHOT = ScenarioHost("trn1.2xlarge", "steady").at(30.0)
FAULT = InjectedFault(
    7, "dma-abort", FaultState.HOLDS, (0,), None, None, 0.0, injected_by_uid=1000, injected_by_pid=4321
)


def lines(*faults: InjectedFault, width: int = 120) -> list[str]:
    page = health_page(Scene.of(replace(SNAPSHOT, injected_faults=faults), page="health"), width, 40)
    assert all(line_width(line) <= width for line in page.lines)
    return ["".join(text for text, _ in line) for line in page.lines]


def test_nothing_is_said_of_injections_where_there_are_none() -> None:
    assert not any("Injected" in line for line in lines())


@pytest.mark.parametrize("width", [120, 40])
def test_what_was_injected_is_listed_with_who_has_done_it(width: int) -> None:
    lost = replace(FAULT, number=8, kind="host-lost", device_indices=(), state=FaultState.WAITING, injected_by_uid=None)
    shown = lines(FAULT, lost, width=width)
    (at,) = [number for number, line in enumerate(shown) if "Injected faults: 2" in line]
    whole = [
        "fault 7: dma-abort device 0, holds (by UID 1000, PID 4321)",
        "fault 8: host-lost the host, waits (by PID 4321)",
    ]
    for line, wanted in zip(shown[at + 1 : at + 3], whole, strict=True):
        assert wanted in line or (width < len(wanted) and wanted[:20] in line)
