"""Questions to a host: fields of devices and cores, and whether it is well."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from neurontools.model import Attribution, Finding, Health, Severity, Snapshot, health
from neurontools.model.finding import FindingKind
from neurontools.model.health import HealthCriteria, HostVerdict, Owner, judge_host, no_devices_verdict
from neurontools.util.errors import UserError
from neurontools.views.ls_reports import health_text, loop_rows
from neurontools.views.query_fields import (
    CORE_FIELDS,
    DEVICE_FIELDS,
    FIELDS,
    field_help,
    parse_fields,
    parse_format,
    query_rows,
    query_text,
)
from tests.harness.scenario_host import ScenarioHost

PEAK = 95e12


def answer(
    snapshot: Snapshot, query: str, form: str = "csv", *, devices: tuple[int, ...] = (), lnc: int | None = None
) -> str:
    fields = parse_fields(query)
    of_cores = any(field.is_of_core for field in fields)
    return query_text(fields, query_rows(snapshot, PEAK, lnc, devices, of_cores=of_cores), parse_format(form))


@pytest.fixture(scope="module")
def busy() -> Snapshot:
    host = ScenarioHost("trn1.32xlarge", neuroncores=3)
    host.at(10)
    return host.at(11)


def test_csv_without_header_and_units_of_two_devices(busy: Snapshot) -> None:
    query = "index,neuroncore.index,neuroncore.held,neuroncore.memory.tensors"
    lines = answer(busy, query, "csv,noheader,nounits", devices=(1, 15)).splitlines()
    assert lines == [f"1,2,yes,{(busy.cores[2].memory.tensors_bytes or 0) / 2**20:.0f}", "1,3,no,0", *lines[2:]]
    assert lines[2:] == ["15,30,no,0", "15,31,no,0"]


def test_values_that_would_break_csv(busy: Snapshot) -> None:
    nasty = 'a,"b"\n\x1b[31m'
    process = replace(busy.processes[0], command=nasty, attribution=Attribution(pod_name="p"))
    told = replace(busy, processes=(process,))
    text = answer(told, "process.command,process.pod,process.slurm_job", "csv,noheader", devices=(0,))
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
    units: dict[str, tuple[str, ...]] = {"MiB": ("_bytes",), "%": ("_ratio",), "TFLOPS": ("_per_second",), "": ("",)}
    units |= {"1/s": ("_per_second",), "s": ("_seconds",), "W": ("_watts",), "kWh": ("_kwh",)}
    units |= {"USD": ("_usd", "_usd_per_hour")}
    names = [field.json_name for field in FIELDS.values()]
    assert len(set(names)) == len(names)
    for field in FIELDS.values():
        assert field.json_name.endswith(units[field.unit.name])
    assert all(field.is_of_core for field in CORE_FIELDS)
    assert not any(field.is_of_core for field in DEVICE_FIELDS)
    assert all(field.name in field_help() for field in FIELDS.values())


@pytest.mark.parametrize(
    ("query", "form", "text"),
    [
        ("indexx", "csv", "--query: indexx is not a field; did you mean index?; --help-query lists them"),
        ("index,", "csv", '--query: "" is not a field'),
        ("index", "tsv", "--format: tsv is not one of csv, json, noheader, nounits"),
        ("index", "noheader", "--format: give one of csv and json"),
        ("index", "csv,json", "--format: give one of csv and json"),
    ],
)
def test_wrong_questions(query: str, form: str, text: str) -> None:
    parse = parse_format if query == "index" else parse_fields
    with pytest.raises(UserError) as raised:
        parse(form if query == "index" else query)
    assert str(raised.value).startswith(text)


def test_health_reports_of_many_devices_and_of_one() -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=4)
    host.at(5)
    snapshot = host.at(400)
    verdicts = health.verdicts(snapshot)
    assert health_text(verdicts, snapshot).splitlines()[-1] == "1 of 16 devices unhealthy"
    assert health_text(verdicts[2:], snapshot) == "all 14 devices are healthy\n"
    assert health_text(verdicts[2:3], snapshot) == "1 device is healthy\n"


HBM = Finding(FindingKind.ECC_UNCORRECTED, Severity.CRITICAL, "1 error", "move the work", 5.0, (3,), part="hbm")
LINK = Finding(FindingKind.UNHEALTHY_COMPONENT, Severity.WARNING, "a bad link", "keep away", 5.0, (1,), part="link_efa")
HANG = Finding(FindingKind.STUCK, Severity.CRITICAL, "PID 7 hangs", "restart it", 5.0, (0, 1), pid=7)
IDLE = Finding(FindingKind.IDLE, Severity.NOTICE, "PID 8 is idle", "end it", 5.0, (2,), pid=8)


def test_equal_findings_of_devices_are_one_line_and_one_of_the_host_has_no_device() -> None:
    alike = [replace(HBM, device_indices=(index,)) for index in range(16)]
    note = replace(IDLE, device_indices=())
    snapshot = replace(ScenarioHost("trn1.32xlarge").at(1), health=Health(tuple(range(16)), (), (*alike, LINK, note)))
    lines = health_text(health.verdicts(snapshot), snapshot).splitlines()
    assert [line.partition(" (for ")[0] for line in lines] == [
        "devices 0-15: critical: 1 error",
        "device 1: warning: a bad link",
        "host: notice: PID 8 is idle",
        "16 of 16 devices unhealthy",
    ]
    assert health.count_devices_by_severity(snapshot) == {Severity.CRITICAL: 16, Severity.NOTICE: 1}


@pytest.mark.parametrize(("flops", "text"), [(0.0, "0.00"), (1e9, "0.001"), (4.2e12, "4.20")])
def test_small_flops_of_a_loop_are_not_zero(flops: float, text: str) -> None:
    snapshot = ScenarioHost("trn1.2xlarge").at(1)
    cores = tuple(replace(core, flops_per_second=flops / len(snapshot.cores)) for core in snapshot.cores)
    (row,) = query_rows(replace(snapshot, cores=cores), PEAK, None, (), of_cores=False)
    assert loop_rows([row]).split()[4] == text


def verdict(*findings: Finding, unknown: tuple[int, ...] = (), asked: HealthCriteria | None = None) -> HostVerdict:
    return judge_host(Health((0, 1, 2, 3), unknown, findings), "0.1", 10.0, asked or HealthCriteria())


def test_what_is_worse_than_a_notice_makes_a_host_unhealthy_and_the_gravest_is_told() -> None:
    assert (verdict().is_healthy, verdict(IDLE).is_healthy) == (True, True)
    assert verdict().sentence == "all 4 devices are healthy"
    told = verdict(LINK, IDLE)
    assert (told.is_healthy, told.severity, told.findings) == (False, Severity.WARNING, (LINK,))
    assert verdict(LINK, HBM).sentence == "device 3: 1 error; move the work (and 1 more)"
    assert verdict(HANG).sentence == "devices 0-1: PID 7 hangs; restart it"


def test_what_several_devices_have_alike_is_told_of_all_of_them() -> None:
    others = [replace(HBM, device_indices=(index,)) for index in (1, 2)]
    told = verdict(LINK, HBM, *others)
    assert [finding.device_indices for finding in told.findings] == [(1,), (2,), (3,), (1,)]
    assert told.sentence == "device 1: 1 error; move the work (alike on devices 2-3, and 1 more)"
    assert verdict(HBM, others[0]).sentence == "device 1: 1 error; move the work (alike on device 3)"


def test_only_what_was_asked_for_counts() -> None:
    node = HealthCriteria(owners=(Owner.NODE,))
    assert verdict(HANG, asked=node).is_healthy is True
    assert verdict(HANG, HBM, asked=node).findings == (HBM,)
    assert verdict(LINK, asked=HealthCriteria(level=Severity.CRITICAL)).is_healthy is True
    assert verdict(HANG, HBM, asked=HealthCriteria(names=("HANG",))).findings == (HANG,)
    assert verdict(IDLE, asked=HealthCriteria(level=Severity.NOTICE)).is_healthy is False
    # A host that is not well otherwise is not called healthy.
    told = verdict(LINK, HBM, asked=HealthCriteria(owners=(Owner.USER,)))
    assert told.is_healthy is True
    assert told.sentence == "no problem that counts here; otherwise 2 of 4 devices unhealthy"
    assert verdict(IDLE, asked=node).sentence == "all 4 devices are healthy"


def test_what_is_not_judged_is_not_known() -> None:
    assert judge_host(None, "0.0.1", 10.0, HealthCriteria()).is_healthy is None
    assert "0.0.1" in judge_host(None, "0.0.1", 10.0, HealthCriteria()).sentence
    assert verdict(unknown=(2,)).is_healthy is None
    assert "1 of 4" in verdict(unknown=(2,)).sentence
    assert verdict(HBM, unknown=(2,)).is_healthy is False
    assert judge_host(Health(), "0.1", 10.0, HealthCriteria()).is_healthy is None


def test_fewer_devices_than_expected_are_a_finding() -> None:
    told = verdict(asked=HealthCriteria(expected_devices=16))
    assert (told.is_healthy, told.severity) == (False, Severity.CRITICAL)
    assert told.sentence.startswith("4 of 16 expected devices are there; ")
    assert verdict(asked=HealthCriteria(expected_devices=4)).is_healthy is True
    assert no_devices_verdict(HealthCriteria(), 10.0).is_healthy is None
    assert no_devices_verdict(HealthCriteria(expected_devices=1), 10.0).is_healthy is False


def test_every_kind_of_finding_has_a_name_and_somebody_who_acts() -> None:
    for kind in FindingKind:
        parts = [None, "hbm", "sram"] if kind is FindingKind.ECC_UNCORRECTED else [None]
        named = {health.finding_name(Finding(kind, Severity.WARNING, "", "", 0.0, part=part)) for part in parts}
        assert named & set(health.FINDING_NAMES)
    # One that is not known drains nobody.
    newer = Finding("lost_its_mind", Severity.CRITICAL, "it did", "help", 0.0)
    assert (health.finding_name(newer), health.finding_owner(newer)) == ("LOST_ITS_MIND", Owner.USER)
