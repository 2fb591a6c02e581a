from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools import health
from neurontools.errors import UserError
from neurontools.model import Attribution, Snapshot
from neurontools.query.document import document, help_text, parse_fields, parse_format
from neurontools.query.fields import CORE_FIELDS, DEVICE_FIELDS, FIELDS, rows
from neurontools.query.free_cores import free_range
from neurontools.query.health_report import health_json, health_text
from tests.scenario_host import ScenarioHost

PEAK = 95e12


def answer(
    snapshot: Snapshot, query: str, form: str = "csv", *, devices: tuple[int, ...] = (), lnc: int | None = None
) -> str:
    fields = parse_fields(query)
    verdicts = health.verdicts(snapshot)
    of_cores = any(field.is_of_core for field in fields)
    return document(fields, rows(snapshot, verdicts, PEAK, lnc, devices, of_cores=of_cores), parse_format(form))


@pytest.fixture(scope="module")
def busy() -> Snapshot:
    host = ScenarioHost("trn1.32xlarge", neuroncores=3)
    host.at(10)
    return host.at(11)


def test_csv_of_devices(busy: Snapshot) -> None:
    text = answer(busy, "index,bdf,memory.total,memory.used,utilization,pids,health,power", devices=(0, 2))
    lines = text.splitlines()
    assert lines[0] == "index,bdf,memory.total [MiB],memory.used [MiB],utilization [%],pids,health,power [%]"
    assert lines[1].startswith("0,0000:10:1c.0,32768 MiB,17")
    assert lines[1].endswith(",4194305 4194306,ok,-")
    assert lines[2] == "2,0000:a0:1c.0,32768 MiB,0 MiB,0.00 %,-,ok,-".replace(
        "0 MiB,0.00 %,-", lines[2].split(",", 3)[3].rsplit(",", 2)[0]
    )
    assert len(lines) == 3


def test_csv_of_cores_without_header_and_units(busy: Snapshot) -> None:
    text = answer(
        busy, "neuroncore.index,process.pid,neuroncore.held,neuroncore.memory.tensors", "csv,noheader,nounits"
    )
    lines = text.splitlines()
    assert lines[2:4] == [f"2,4194307,yes,{(busy.cores[2].memory.tensors_bytes or 0) / 2**20:.0f}", "3,-,no,0"]
    assert len(lines) == 32


def test_json_has_base_units_and_null_for_unknown(busy: Snapshot) -> None:
    found = json.loads(answer(busy, "index,memory.used,power,connected_to,health.reason", "json", devices=(1,)))
    memory = sum(core.memory.total_bytes or 0 for core in busy.cores[2:4])
    assert found == [
        {
            "index": 1,
            "memory_used_bytes": memory,
            "power_average_ratio": None,
            "connected_to": list(busy.devices[1].connected_to),
            "health_reason": None,
        }
    ]


def test_values_that_would_break_csv(busy: Snapshot) -> None:
    nasty = 'a,"b"\n\x1b[31m'
    process = replace(busy.processes[0], command=nasty, attribution=Attribution(pod_name="p"))
    text = answer(
        replace(busy, processes=(process,)),
        "process.command,process.pod,process.slurm_job",
        "csv,noheader",
        devices=(0,),
    )
    first, second = csv.reader(io.StringIO(text))
    assert first[0].startswith('a,"b"')
    assert "\x1b" not in text
    assert "\n" not in first[0]
    assert first[1:] == ["p", "-"]
    assert second == ["-", "-", "-"], "the holder of core 1 is not told"


def test_every_field_can_be_asked_on_every_host() -> None:
    for instance_type, lnc in (("inf2.xlarge", None), ("trn2.48xlarge", None), ("trn2.48xlarge", 1)):
        snapshot = ScenarioHost(instance_type).at(1)
        for form in ("csv", "json"):
            text = answer(snapshot, ",".join(FIELDS), form, lnc=lnc)
            assert text
        expected = len(snapshot.cores) // (lnc or snapshot.instance.logical_neuroncore_config)
        assert len(json.loads(text)) == expected


def test_json_names_tell_their_units() -> None:
    units = {"MiB": "_bytes", "%": "_ratio", "TFLOPS": "_per_second", "s": "_seconds", "1/s": "_per_second", "": ""}
    names = [field.json_name for field in FIELDS.values()]
    assert len(set(names)) == len(names)
    for field in FIELDS.values():
        assert field.json_name.endswith(units[field.unit.name])
    assert all(field.is_of_core for field in CORE_FIELDS)
    assert not any(field.is_of_core for field in DEVICE_FIELDS)
    assert all(field.name in help_text() for field in FIELDS.values())


@pytest.mark.parametrize(
    ("query", "form", "text"),
    [
        ("indexx", "csv", "--query: indexx is no field; did you mean index?; --help-query lists them"),
        ("index,", "csv", '--query: "" is no field'),
        ("index", "tsv", "--format: tsv is none of csv, json, noheader, nounits"),
        ("index", "noheader", "--format: give one of csv and json"),
        ("index", "csv,json", "--format: give one of csv and json"),
    ],
)
def test_wrong_questions(query: str, form: str, text: str) -> None:
    parse = parse_format if query == "index" else parse_fields
    with pytest.raises(UserError) as raised:
        parse(form if query == "index" else query)
    assert str(raised.value).startswith(text)


def held(instance_type: str, *cores: int, lnc: int | None = None) -> Snapshot:
    snapshot = ScenarioHost(instance_type, "idle", lnc=lnc).at(1)
    return replace(
        snapshot, cores=tuple(replace(core, owner_pid=1) if core.index in cores else core for core in snapshot.cores)
    )


@pytest.mark.parametrize(
    ("busy_cores", "count", "found"),
    [
        ((), 1, (0, 0)),
        ((), 2, (0, 1)),
        ((0,), 1, (1, 1)),  # fills the device that is broken already
        ((0,), 2, (2, 3)),  # one device and not two halves
        ((0, 1, 4), 3, (5, 7)),  # 2-3 are free, but not three in a row
        ((), 4, (0, 3)),
        ((0,), 4, (2, 5)),  # devices 1 and 2 are neighbours
        ((*range(6),), 4, (8, 11)),  # devices 3 and 4 are not, 4 and 5 are
        ((*range(0, 32, 2),), 2, None),
        ((*range(31),), 1, (31, 31)),
        ((), 32, (0, 31)),
        ((5,), 32, None),
    ],
)
def test_free_cores(busy_cores: tuple[int, ...], count: int, found: tuple[int, int] | None) -> None:
    assert free_range(held("trn1.32xlarge", *busy_cores), count) == found


def test_free_cores_of_devices_that_may_be_used() -> None:
    snapshot = held("trn1.32xlarge", 4)
    assert free_range(snapshot, 2, device_indices=(2, 3)) == (6, 7)
    assert free_range(snapshot, 2, avoided_devices=frozenset((0, 1))) == (6, 7)
    assert free_range(snapshot, 2, device_indices=(2,)) is None


def test_free_logical_cores() -> None:
    snapshot = held("trn2.48xlarge", 0)
    assert free_range(snapshot, 4) == (4, 7), "half of core 0 is held"
    assert free_range(snapshot, 3) == (1, 3)
    assert free_range(snapshot, 1, 1) == (1, 1)


@settings(deadline=None)
@given(st.sets(st.integers(0, 31)), st.integers(1, 32))
def test_what_is_found_is_free_and_found_when_there_is_any(busy_cores: set[int], count: int) -> None:
    found = free_range(TRN1 if not busy_cores else held_of_trn1(busy_cores), count)
    runs = [all(core not in busy_cores for core in range(first, first + count)) for first in range(33 - count)]
    assert (found is not None) == any(runs)
    if found is not None:
        assert found[1] - found[0] + 1 == count
        assert runs[found[0]]


TRN1 = held("trn1.32xlarge")


def held_of_trn1(cores: set[int]) -> Snapshot:
    return replace(
        TRN1, cores=tuple(replace(core, owner_pid=1) if core.index in cores else core for core in TRN1.cores)
    )


def test_health_reports() -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=4)
    host.at(5)
    verdicts = health.verdicts(host.at(400))
    lines = health_text(verdicts).splitlines()
    assert lines[0].startswith(
        "device 0: critical: NeuronCore 0: one execution of PID 4194305 has been running for 6 m 30 s"
    )
    assert lines[-1] == "1 of 16 devices unhealthy"
    found = json.loads(health_json(verdicts))
    assert (found[0]["severity"], found[0]["healthy"], found[0]["findings"][0]["kind"]) == ("critical", False, "stuck")
    assert found[2] == {"device_index": 2, "severity": "ok", "healthy": True, "findings": []}
    assert health_text(verdicts[2:]) == "all 14 devices are healthy\n"
    assert health_text(verdicts[2:3]) == "1 device is healthy\n"
