from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.health import Kind
from neurontools.model import Finding, Health, Severity
from neurontools.query import problems
from neurontools.query.host_verdict import Asked, HostVerdict, host_verdict, no_devices
from neurontools.query.problems import Owner

HBM = Finding(Kind.ECC_UNCORRECTED, Severity.CRITICAL, "1 error", "move the work", 5.0, (3,), part="hbm")
LINK = Finding(Kind.UNHEALTHY_COMPONENT, Severity.WARNING, "a bad link", "keep away", 5.0, (1,), part="link_efa")
HANG = Finding(Kind.STUCK, Severity.CRITICAL, "PID 7 hangs", "restart it", 5.0, (0, 1), pid=7)
IDLE = Finding(Kind.IDLE, Severity.NOTICE, "PID 8 is idle", "end it", 5.0, (2,), pid=8)


def verdict(*findings: Finding, unknown: tuple[int, ...] = (), asked: Asked | None = None) -> HostVerdict:
    return host_verdict(Health((0, 1, 2, 3), unknown, findings), "0.1", 10.0, asked or Asked())


def test_what_is_worse_than_a_notice_makes_a_host_unhealthy() -> None:
    assert verdict().is_healthy is True
    assert verdict().sentence == "all 4 devices are healthy"
    assert verdict(IDLE).is_healthy is True
    told = verdict(LINK, IDLE)
    assert (told.is_healthy, told.severity, told.findings) == (False, Severity.WARNING, (LINK,))


def test_the_gravest_is_told_with_its_place_and_how_many_there_are_besides() -> None:
    assert verdict(LINK, HBM).sentence == "device 3: 1 error; move the work (and 1 more)"
    assert verdict(HANG).sentence == "devices 0-1: PID 7 hangs; restart it"


def test_what_several_devices_have_alike_is_told_of_all_of_them() -> None:
    others = [replace(HBM, device_indices=(index,)) for index in (1, 2)]
    told = verdict(LINK, HBM, *others)
    assert [finding.device_indices for finding in told.findings] == [(1,), (2,), (3,), (1,)]
    assert told.sentence == "device 1: 1 error; move the work (alike on devices 2-3, and 1 more)"
    assert verdict(HBM, others[0]).sentence == "device 1: 1 error; move the work (alike on device 3)"


def test_only_what_was_asked_for_counts() -> None:
    node = Asked(owners=(Owner.NODE,))
    assert verdict(HANG, asked=node).is_healthy is True
    assert verdict(HANG, HBM, asked=node).findings == (HBM,)
    assert verdict(LINK, asked=Asked(level=Severity.CRITICAL)).is_healthy is True
    assert verdict(HANG, HBM, asked=Asked(names=("HANG",))).findings == (HANG,)
    assert verdict(IDLE, asked=Asked(level=Severity.NOTICE)).is_healthy is False


def test_a_host_that_is_not_well_otherwise_is_not_called_healthy() -> None:
    told = verdict(LINK, HBM, asked=Asked(owners=(Owner.USER,)))
    assert told.is_healthy is True
    assert told.sentence == "no problem that counts here; otherwise 2 of 4 devices unhealthy"
    assert verdict(IDLE, asked=Asked(owners=(Owner.NODE,))).sentence == "all 4 devices are healthy"


def test_what_is_not_judged_is_not_known() -> None:
    assert host_verdict(None, "0.0.1", 10.0, Asked()).is_healthy is None
    assert "0.0.1" in host_verdict(None, "0.0.1", 10.0, Asked()).sentence
    assert verdict(unknown=(2,)).is_healthy is None
    assert "1 of 4" in verdict(unknown=(2,)).sentence
    assert verdict(HBM, unknown=(2,)).is_healthy is False
    assert host_verdict(Health(), "0.1", 10.0, Asked()).is_healthy is None


def test_fewer_devices_than_expected_are_a_finding() -> None:
    told = verdict(asked=Asked(expected_devices=16))
    assert (told.is_healthy, told.severity) == (False, Severity.CRITICAL)
    assert told.sentence.startswith("4 of 16 expected devices are there; ")
    assert verdict(asked=Asked(expected_devices=4)).is_healthy is True
    assert no_devices(Asked(), 10.0).is_healthy is None
    assert no_devices(Asked(expected_devices=1), 10.0).is_healthy is False


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_finding_has_a_name_and_somebody_who_acts(kind: Kind) -> None:
    parts = [None, "hbm", "sram"] if kind is Kind.ECC_UNCORRECTED else [None]
    named = {problems.name(Finding(kind, Severity.WARNING, "", "", 0.0, part=part)) for part in parts}
    assert named & set(problems.NAMES)


def test_a_kind_that_is_not_known_drains_nobody() -> None:
    newer = Finding("lost_its_mind", Severity.CRITICAL, "it did", "help", 0.0)
    assert (problems.name(newer), problems.owner(newer)) == ("LOST_ITS_MIND", Owner.USER)
