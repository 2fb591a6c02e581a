"""Every output against every fact of a host with each kind of trouble; docs/outputs.md is the same table.

A cell is a pattern that the output has, or the reason why the output does not show the fact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from html import unescape

import pytest
from neurond.exports.otlp import INSTRUMENTS
from neurond.verdicts.rule_evaluator import FindingLogger

from neurontools.cli.healthcheck.command import main as neuron_healthcheck
from neurontools.cli.ls.command import main as neuron_ls
from neurontools.cli.ls.fleet import fleet_health_text, fleet_table
from neurontools.cli.monitor.command import main as neuron_monitor
from neurontools.cli.top.command import main as neuron_top
from neurontools.exporters.exposition import encode_text
from neurontools.exporters.snapshot_metrics import SnapshotMetrics
from neurontools.fleet.document import document, document_json
from neurontools.model import EccCounters, EndedProcess, Finding, ModelPlacement, ServedModel, Severity, Snapshot
from neurontools.model.finding import FindingKind
from neurontools.views.device_list import device_list_json, device_list_object, device_list_table
from neurontools.views.ls_reports import EndedReport, ended_json, ended_text
from neurontools.web.document import PageFrame, page_document
from neurontools.web.page_query import PageQuery
from neurontools.web.page_views import HostView
from neurontools.web.privacy_filter import PrivacyFilter
from tests.harness.command import call_main
from tests.harness.fleet import live
from tests.harness.older_daemon import SnapshotServer
from tests.harness.paths import ROOT
from tests.harness.pictures import is_as_stored
from tests.harness.scenario_host import ScenarioHost
from tests.harness.still_feed import StillFeed, message_of, write_recording

HUGE = 2**64 - 1


@cache
def host() -> Snapshot:
    """A host that lacks its last device and one between others, and has an example of each fact."""
    simulated = ScenarioHost("trn1.32xlarge", "steady", neuroncores=2)
    simulated.at(10)
    whole = simulated.at(11)
    devices = {device.index: device for device in whole.devices if device.index not in (3, 15)}
    devices[1] = replace(devices[1], ecc=replace(devices[1].ecc, mem_corrected_total=HUGE, sram_uncorrected_total=None))
    devices[4] = replace(devices[4], ecc=EccCounters(0, 7, 0, 0, 0))
    ended = EndedProcess(
        4242,
        1000,
        "ada",
        "python gone.py",
        "gone",
        None,
        False,
        1.0,
        3601.0,
        2,
        1,
        (0,),
        steps_total=50,
        exit_status=-9,
    )
    judged = simulated.judge.evaluate(
        replace(
            whole,
            devices=tuple(devices.values()),
            cores=tuple(core for core in whole.cores if core.device_index in devices),
            ended=(ended,),
            warnings=("/sys/x can't be read",),
            health=None,
        )
    )
    assert judged.health is not None
    model = ServedModel("llm-7", (ModelPlacement(0, device_memory_bytes=4096),), queue_depth=37)
    first, *others = judged.processes
    of_host = Finding(FindingKind.KERNEL_ERROR, Severity.CRITICAL, "a device has failed", "see dmesg", 1.0)
    marked = (replace(each, injected=each.reason.startswith(UNHEALTHY)) for each in judged.health.findings)
    return replace(
        judged,
        processes=(replace(first, served_models=(model,)), *others),
        health=replace(judged.health, findings=(*marked, of_host)),
    )


def otlp(snapshot: Snapshot) -> str:
    readings = (
        (each.name, each.unit, value, attributes) for each in INSTRUMENTS for value, attributes in each.read(snapshot)
    )
    return "".join(f"{name} {unit} {value} {attributes}\n" for name, unit, value, attributes in readings)


def web(snapshot: Snapshot) -> str:
    view = HostView("/top/", lambda: StillFeed([snapshot]), PrivacyFilter(shows_commands=True, shows_users=True))
    view.start()
    drawn = [view.draw(PageQuery(page)) for page in ("overview", "health", "topology", "processes", "usage", "host")]
    view.stop()
    documents = [page_document("/top/", PageFrame(title, ()), content, "1").decode() for title, content in drawn]
    return unescape(re.sub("<[^>]*>", " ", "".join(documents)))


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each output says of the host, with single blanks."""
    snapshot, directory = host(), tmp_path_factory.mktemp("n")
    server = SnapshotServer(str(directory / "n.sock"), message_of(snapshot))
    recording = str(write_recording(directory / "n.rec", [snapshot]))

    def ask(main: Callable[[], object], *arguments: str) -> str:
        return call_main(main, "--socket", server.socket_path, *arguments, COLUMNS="160").stdout

    def pages(*source: str) -> str:
        names = ("overview", "health", "processes", "usage", "host")
        return "".join(call_main(neuron_top, *source, "--once", "--page", name, COLUMNS="160").stdout for name in names)

    fields = "index,present,memory.total,ecc.mem.corrected,ecc.sram.uncorrected,health,health.reason,pids"
    states, report = [live("a", snapshot)], EndedReport(snapshot.ended, 0.0)
    with closing(server):
        found = {
            "neuron-ls": device_list_table(snapshot),
            "neuron-ls -j": device_list_json(snapshot),
            "neuron-ls --output-format json": device_list_object(snapshot),
            "neuron-ls --query": ask(neuron_ls, "--query", fields, "--format", "json"),
            "neuron-ls --loop": ask(neuron_ls, "--loop", "1", "--count", "1"),
            "neuron-ls --health": ask(neuron_ls, "--health") + ask(neuron_ls, "--health", "-j"),
            "neuron-ls --ended": ended_text(report) + ended_json(report),
            "neuron-ls --hosts": fleet_table(states) + fleet_health_text(states),
            "neuron-ls --hosts -j": document_json(document(states, 0.0, 0.0, jobs=[], models=[]), indent=1),
            "neuron-top --once": pages("--socket", server.socket_path),
            "neuron-top --json": ask(neuron_top, "--json"),
            "neuron-top --json-lines": json.dumps(json.loads(ask(neuron_top, "--json-lines", "--count", "1"))),
            "neuron-top --csv": ask(neuron_top, "--csv"),
            "neuron-top --replay": pages("--replay", recording)
            + call_main(neuron_top, "--replay", recording, "--json").stdout,
            "neuron-monitor": ask(neuron_monitor, "--once"),
            "/metrics": encode_text(SnapshotMetrics(0.0).families(snapshot, None, None)).decode(),
            "OTLP": otlp(snapshot),
            "neuron-healthcheck": ask(neuron_healthcheck) + ask(neuron_healthcheck, "--format", "json"),
            "web page": web(snapshot),
        }
    return {name: " ".join(text.split()) for name, text in found.items()}


PAGE_TOP = """# What each output shows

All outputs are made of the same snapshot. This table has every output and every kind of fact. Its source is
`tests/e2e/test_every_output.py`, which compares each output with a host that has all of these facts.

* A missing device is an entry: JSON has `is_present` or `present` false, the table of neuron-ls has `3 (missing)`.
* A finding on no device, such as a kernel message without a device, is a finding of the host. It is in `host_findings`
  of `neuron-top --json`, and in the entry without a device index of `neuron-ls --health -j`.
* An unknown value is `null` in JSON, `-` in text, and absent in metrics.

"""


class Not(str):
    """Why an output does not show a fact."""


ORIGINAL = Not("the original's format has no place for it")
DEVICE, PROCESS = Not("a row is a device"), Not("a row is a process")
HEALTH, ENDED = Not("it is about health only"), Not("it is about ended processes only")
SUMMARY, SERIES = Not("a summary has no counters of devices"), Not("a series is of what runs; ask neuron-ls --ended")
DETAILS = Not("the details of a process have it")
SEE_HEALTH = Not("see neuron-ls --health")
BUSY = Not("the page shows findings, not counters")
MISSING, HOST, UNHEALTHY = "device 15 is missing", "a device has failed", "7 uncorrected ECC errors in HBM"
OWNER, UNREAD, INJECTED = "4194306", "/sys/x can't be read", rf"{UNHEALTHY}[\w ]* \[injected\]"
MARKS = {
    "missing devices": "15 .missing|device 15 is missing",
    "unhealthy devices": UNHEALTHY,
    "findings on no device": HOST,
    "owners": OWNER,
    "ended processes": "4242|gone",
    "counters up to 2^64-1": str(HUGE),
    "unknown values": r"\bnull\b|(?<= )-(?= )",
    "units": "bytes|MiB|GB",
    "what can't be read": UNREAD,
    "marks of injected findings": r"\[injected\]|injected\W{1,4}[tT]rue",
    "queues of served models": "llm-7",
}
"""The facts, each with a pattern that an output without it does not have."""
_TOP = (
    *("ND15✗missing", UNHEALTHY, HOST, "synthetic-1", "4242", BUSY),
    *("ND15✗missing", r"17\.3 / 32 GB", UNREAD, INJECTED, DETAILS),
)
_TOP_JSON = (
    r'"neuron_device": 15, "is_present": false, "utilization_ratio": null',
    UNHEALTHY,
    r'"host_findings": \[ ?\{ ?"kind": "kernel_error"',
    OWNER,
    '"pid": 4242',
    f'"mem_ecc_corrected_total": {HUGE}',
    '"sram_ecc_uncorrected_total": null',
    '"memory_total_bytes": 34359738368',
    UNREAD,
    '"is_injected": true',
    '"name": "llm-7".*"queue_depth": 37',
)
_LS = (
    r"15 \(missing\) \| - ",
    *(SEE_HEALTH,) * 2,
    OWNER,
    *(ORIGINAL,) * 2,
    r"15 \(missing\) \| -",
    "32 GB",
    Not("standard error has it, on a terminal without a daemon"),
    SEE_HEALTH,
    ORIGINAL,
)
_J = (
    ORIGINAL,
    ORIGINAL,
    ORIGINAL,
    OWNER,
    ORIGINAL,
    ORIGINAL,
    Not("an unknown text is empty"),
    Not("the original names bytes memory_size"),
    ORIGINAL,
    ORIGINAL,
    ORIGINAL,
)
TABLE: dict[str, tuple[str, ...]] = {
    "neuron-ls": _LS,
    "neuron-ls -j": _J,
    "neuron-ls --output-format json": (r'"missing_neuron_devices": \[ 3, 15 \]', *_J[1:]),
    "neuron-ls --query": (
        r'"index": 15, "present": false, "memory_total_bytes": null',
        UNHEALTHY,
        DEVICE,
        OWNER,
        DEVICE,
        f'"ecc_mem_corrected_total": {HUGE}',
        '"ecc_sram_uncorrected_total": null, "health": "warning"',
        '"memory_total_bytes": 34359738368',
        DEVICE,
        INJECTED,
        DEVICE,
    ),
    "neuron-ls --loop": (
        " 15 - - - - - - -/- critical -",
        " 4 0/2 0.0 0.00 0.0 0 - 7/0 critical -",
        DEVICE,
        OWNER,
        DEVICE,
        f" 1 0/2 0.0 0.00 0.0 0 - 0/{HUGE} warning",
        " 15 - - - - - - -/-",
        "TFLOPS GB % %",
        DEVICE,
        SEE_HEALTH,
        DEVICE,
    ),
    "neuron-ls --health": (
        MISSING,
        UNHEALTHY,
        f'host: critical: {HOST}.*"device_index": null',
        HEALTH,
        HEALTH,
        HEALTH,
        '"pid": null',
        "seconds",
        HEALTH,
        f'{INJECTED}.*"injected": true',
        HEALTH,
    ),
    "neuron-ls --ended": (
        *(ENDED,) * 4,
        'signal 9 . 4242 .*"exit_status": -9',
        ENDED,
        '"flop_total": null',
        "CORE HOURS|CORE | HOURS",
        ENDED,
        ENDED,
        ENDED,
    ),
    "neuron-ls --hosts": (
        "14 of 16 . 28 . 2 . 26 ",
        UNHEALTHY,
        HOST,
        SUMMARY,
        SUMMARY,
        SUMMARY,
        r"critical . - .",
        Not("all are counts"),
        SUMMARY,
        INJECTED,
        Not("neuron-top --hosts has them"),
    ),
    "neuron-ls --hosts -j": (
        r'"neuron_device": 15, "is_present": false, "health": "critical"',
        UNHEALTHY,
        HOST,
        Not("users and jobs, not processes"),
        SUMMARY,
        SUMMARY,
        '"driver_version": null',
        "_bytes",
        Not("problem_count counts them"),
        '"is_injected": true',
        '"name": "llm-7".*"queue_depth": 37',
    ),
    "neuron-top --once": _TOP,
    "neuron-top --json": _TOP_JSON,
    "neuron-top --json-lines": _TOP_JSON,
    "neuron-top --csv": (
        PROCESS,
        PROCESS,
        PROCESS,
        OWNER,
        PROCESS,
        PROCESS,
        Not("an unknown cell is empty"),
        "_bytes",
        PROCESS,
        PROCESS,
        Not("a cell is a number or a text"),
    ),
    "neuron-top --replay": _TOP_JSON,
    "neuron-monitor": (
        ORIGINAL,
        r'"neuron_device_index":4,"mem_ecc_corrected":0,"mem_ecc_uncorrected":7,',
        ORIGINAL,
        OWNER,
        ORIGINAL,
        f'"mem_ecc_corrected":{HUGE}',
        Not("the original counts in integers, so an unknown count is 0"),
        "_bytes",
        ORIGINAL,
        ORIGINAL,
        ORIGINAL,
    ),
    "/metrics": (
        r'device_health\{neuron_device_index="15"\} 3',
        UNHEALTHY,
        f'neurontools_health\\{{finding="device_missing"\\}} 3.*finding="kernel_error".*{HOST}',
        OWNER,
        SERIES,
        f'event_type="mem_corrected",neuron_device_index="1"\\}} {HUGE}',
        Not("an unknown value has no sample"),
        "_bytes",
        UNREAD,
        f'injected="true".*{UNHEALTHY}',
        r'host_model_queue_depth\{model="llm-7"\} 37',
    ),
    "OTLP": (
        r"hw.status 1 1 \{'hw.id': 'neuron15', 'hw.type': 'gpu', 'hw.state': 'failed'\}",
        UNHEALTHY,
        HOST,
        OWNER,
        SERIES,
        f"hw.errors .error. {HUGE}",
        Not("an unknown value has no point"),
        "hw.gpu.memory.limit By ",
        Not("see /metrics"),
        f"{UNHEALTHY}.*'neuron.finding.injected': True",
        r"neurontools.model.queue_depth \{request\} 37 .*llm-7",
    ),
    "neuron-healthcheck": (
        MISSING,
        UNHEALTHY,
        HOST,
        *(HEALTH,) * 3,
        "null",
        "seconds",
        HEALTH,
        '"injected":true',
        HEALTH,
    ),
    "web page": (
        "ND 15 missing",
        UNHEALTHY,
        f"critical host {HOST}",
        "synthetic-1",
        "4242",
        f"{HUGE:,}",
        "ND 15 missing - - - ",
        "17.3 GB / 32 GB",
        UNREAD,
        INJECTED,
        DETAILS,
    ),
}


@pytest.mark.parametrize(("name", "cells"), TABLE.items(), ids=TABLE)
def test_an_output_shows_each_fact_or_the_table_says_why_not(
    outputs: dict[str, str], name: str, cells: tuple[str, ...]
) -> None:
    for (fact, mark), cell in zip(MARKS.items(), cells, strict=True):
        if isinstance(cell, Not):
            assert not re.search(mark, outputs[name]), f"{name} shows {fact}; the table says: {cell}"
        else:
            assert re.search(cell, outputs[name]), f"{name} does not show {fact}: no {cell} in {outputs[name]}"


def test_the_log_of_the_daemon_names_the_device_of_each_finding_or_the_host(caplog: pytest.LogCaptureFixture) -> None:
    FindingLogger().log_new(host())
    lines = [record.getMessage() for record in caplog.records]
    assert "host: critical: a device has failed; see dmesg" in lines
    assert any(line.startswith("device 4: critical: 7 uncorrected ECC errors in HBM") for line in lines)
    assert any(line.startswith("device 15: critical: device 15 is missing") for line in lines)


def test_the_manual_has_this_table(outputs: dict[str, str]) -> None:
    assert outputs.keys() == TABLE.keys()
    facts = list(MARKS)
    rows = [["output", *facts], ["---"] * (1 + len(facts))]
    reasons = list(dict.fromkeys(cell for cells in TABLE.values() for cell in cells if isinstance(cell, Not)))
    for name, cells in TABLE.items():
        shown = [str(1 + reasons.index(cell)) if isinstance(cell, Not) else "yes" for cell in cells]
        rows.append([f"`{name}`" if "neuron" in name else name, *shown])
    text = PAGE_TOP + "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\nA number is the reason why not:\n\n"
    text += "".join(f"{number}. {reason}\n" for number, reason in enumerate(reasons, 1))
    assert is_as_stored(text, ROOT / "docs/outputs.md"), "UPDATE_GOLDEN=1 writes it anew"
