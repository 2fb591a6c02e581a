"""The process list and the details of a process: what is shown where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.model import Attribution, Snapshot
from neurontools.views.process_page import process_page
from neurontools.views.scene import Scene
from tests.scenario_host import ScenarioHost

HOST = ScenarioHost("trn1.2xlarge", "steady").at(30.0)
PLACES = {
    "train/bert-0": Attribution(pod_name="bert-0", pod_namespace="train", container_id="ab" * 32),
    "bert-0": Attribution(pod_name="bert-0"),
    "job 77.0": Attribution(slurm_job_id="77", slurm_step_id="0"),
    "trainer": Attribution(container_name="trainer", container_id="ab" * 32),
    "abababababab": Attribution(container_id="ab" * 32),
}


def placed(attribution: Attribution | None) -> Snapshot:
    first, *others = HOST.processes
    return replace(HOST, processes=(replace(first, attribution=attribution), *others))


def text_of(scene: Scene, width: int) -> str:
    return "\n".join("".join(part for part, _ in line) for line in process_page(scene, width, 20).lines)


@pytest.mark.parametrize("place", PLACES)
def test_pod_container_or_job_has_a_column_and_a_line(place: str) -> None:
    snapshot = placed(PLACES[place])
    listed = text_of(Scene.of(snapshot, page="processes"), 200).splitlines()
    titles = next(line for line in listed if "PID" in line and "TAG" in line)
    row = next(line for line in listed if str(snapshot.processes[0].pid) in line)
    assert row[titles.index("WHERE") :].split("  ")[0].strip() == place
    details = text_of(Scene.of(snapshot, details_pid=snapshot.processes[0].pid), 200).splitlines()
    assert [line.split()[1:] for line in details if line.split()[:1] == ["where"]] == [place.split()]


def test_the_column_is_not_there_while_it_would_be_empty() -> None:
    assert "WHERE" not in text_of(Scene.of(placed(None), page="processes"), 200)
