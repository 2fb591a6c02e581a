"""What is left of a host of which only a part is to be seen."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace

import pytest

from neurontools import health
from neurontools.model import EndedProcess
from neurontools.views.drawing.line import plain
from neurontools.views.drawing.narrowing import Narrowing
from neurontools.views.drawing.scene import Clock, Scene
from neurontools.views.frame import frame
from neurontools.views.pages import PAGES
from tests.harness.dashboard_terminal import TOP, Terminal
from tests.harness.running_daemon import RunningDaemon
from tests.harness.scenario_host import ScenarioHost
from tests.harness.snapshots import process_of

HOST = ScenarioHost("trn1.32xlarge", "steady").at(30.0)
LNC = ScenarioHost("trn2.48xlarge", "steady").at(30.0)


def test_all_is_shown_unless_something_is_asked_for() -> None:
    assert not Narrowing()
    assert Narrowing().part(HOST) is HOST
    assert not Narrowing().figures(HOST).hidden_devices


def test_devices_by_index_and_address() -> None:
    address = HOST.devices[3].bdf
    assert address is not None
    narrowing = Narrowing(frozenset((1,)), frozenset((address,)))
    figures = narrowing.figures(HOST)
    assert [core.index for core in figures.cores] == [2, 3, 6, 7]
    assert sorted(index for each in figures.by_pid.values() for index in each.process.neuroncore_indices) == [
        2,
        3,
        6,
        7,
    ]
    assert figures.hidden_devices == set(range(16)) - {1, 3}
    assert not figures.missing_devices
    assert [device.index for device in figures.snapshot.devices] == list(range(16))
    part = narrowing.part(HOST)
    assert [device.index for device in part.devices] == [1, 3]
    assert [verdict.device_index for verdict in health.verdicts(part)] == [1, 3]
    assert figures.device_memory(None).total_bytes == sum(
        core.memory.total_bytes or 0 for core in HOST.cores if core.device_index in (1, 3)
    )


def test_what_ended_is_shown_where_it_was() -> None:
    near, far = (
        EndedProcess(pid, 0, "root", "", str(pid), None, False, 1.0, 2.0, 2, 1, device_indices=(pid,)) for pid in (1, 9)
    )
    narrowing = Narrowing(frozenset((1, 2)))
    part = narrowing.part(replace(HOST, ended=(near, far)))
    assert part.ended == (near,)
    assert narrowing.ended((near, far), part) == (near,)
    assert Narrowing().ended((near, far), HOST) == (near, far)


def test_hidden_devices_come_on_top() -> None:
    figures = Narrowing(frozenset((1, 2))).figures(HOST, frozenset((2, 5)))
    assert {core.device_index for core in figures.cores} == {1}


def test_cores_that_a_process_would_see() -> None:
    figures = Narrowing(first_core=3, core_count=2).figures(HOST)
    assert [core.index for core in figures.cores] == [3, 4]
    assert figures.hidden_devices == set(range(16)) - {1, 2}
    physical = Narrowing(first_core=3, core_count=1, logical_neuroncore_config=2).part(LNC)
    assert [core.index for core in physical.cores] == [6, 7]
    of_host = Narrowing(first_core=3, core_count=1).part(LNC)
    assert LNC.instance.logical_neuroncore_config == 2
    assert of_host.cores == physical.cores


def test_a_process_of_which_only_the_device_is_known_goes_with_it() -> None:
    opened = replace(HOST, processes=(process_of(7, "x", [2]), process_of(8, "y", [9])))
    assert [process.pid for process in Narrowing(frozenset((2,))).part(opened).processes] == [7]


def test_what_is_not_there_is_named() -> None:
    assert Narrowing(frozenset((15,))).missing(HOST) == ""
    assert Narrowing(frozenset((16,))).missing(HOST) == "16"
    assert Narrowing(bdfs=frozenset(("0000:00:00.0",))).missing(HOST) == "0000:00:00.0"


@pytest.mark.parametrize("page", [page.name for page in PAGES])
@pytest.mark.parametrize("size", [(80, 24), (200, 50), (20, 5)])
def test_every_page_is_drawn_of_a_part(page: str, size: tuple[int, int]) -> None:
    scene = Scene.of(HOST, Narrowing(frozenset((15,))), page=page, clock=Clock("LIVE"))
    lines = [plain(line) for line in frame(scene, *size).lines]
    assert len(lines) == size[1]
    if size[0] > 20:
        assert "1 of 16 devices" in lines[0]
    assert "missing" not in "\n".join(lines)


def top(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TOP, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


def test_documents_and_screens_have_the_part_alone(daemon: RunningDaemon) -> None:
    document = json.loads(top("--socket", daemon.socket, "--json", "-d", "2,4-5").stdout)
    assert [device["neuron_device"] for device in document["devices"]] == [2, 4, 5]
    assert [core["neuroncore"] for core in document["neuroncores"]] == [4, 5, 8, 9, 10, 11]
    done = top("--socket", daemon.socket, "--json", "--only-visible", NEURON_RT_VISIBLE_CORES="3-4")
    assert [core["neuroncore"] for core in json.loads(done.stdout)["neuroncores"]] == [3, 4]
    assert "3 of 16 devices" in top("--socket", daemon.socket, "--once", "-d", "2,4-5").stdout


@pytest.mark.parametrize(
    ("arguments", "cores", "code", "told"),
    [
        (("-d", "16"), "", 6, "--device: no device 16 on this host; it has devices 0 to 15"),
        (("-d", "x"), "", 2, "--device: x is no device"),
        (("--only-visible",), "", 2, "--only-visible: NEURON_RT_VISIBLE_CORES is not set"),
        (("--only-visible",), "98-99", 6, "no NeuronCore 98-99 on this host; it has NeuronCores 0 to 31"),
        (("--only-visible",), "1,3", 2, "NEURON_RT_VISIBLE_CORES='1,3'"),
    ],
)
def test_misuse(daemon: RunningDaemon, arguments: tuple[str, ...], cores: str, code: int, told: str) -> None:
    done = top("--socket", daemon.socket, "--json", *arguments, NEURON_RT_VISIBLE_CORES=cores)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_dashboard_shows_the_part(daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> None:
    def shown(text: str) -> bool:
        return "2 of 16 devices" in text and "Memory Usage" in text

    terminal = Terminal("--socket", daemon.socket, "-d", "3,5", home=tmp_path_factory.mktemp("home"))
    try:
        terminal.until(shown)
        terminal.press("q")
        assert terminal.ends() == 0
    finally:
        terminal.close()
