"""What can't be in a report: wrong arguments, huge amounts, cores that were not granted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neurontools.model import DeviceMemory, HostMemory
from neurontools.rpc.report_limits import MOST_MODELS, MOST_SUBGRAPHS
from neurontools.runtime.reporting.accounts import (
    LARGEST_BYTES,
    LARGEST_COUNT,
    Accounts,
    sendable,
)
from neurontools.runtime.reporting.kinds import Outcome
from tests.harness.account_reports import begin, end, report_of


def test_wrong_arguments_change_nothing() -> None:
    accounts = Accounts(2)
    started = begin(accounts, 1.0)
    end(accounts, started, 1.5)
    before = report_of(accounts, 2.0).SerializeToString(deterministic=True)
    wrong_core = DeviceMemory(constants_bytes=1)
    for call in (
        lambda: end(accounts, started, 2.0),
        lambda: begin(accounts, 1.0, core=2),
        lambda: begin(accounts, 1.0, core=-1),
        lambda: accounts.add_memory(2, "tensors_bytes", 1),
        lambda: accounts.add_memory(0, "bytes", 1),
        lambda: accounts.add_memory(0, "tensors_bytes", LARGEST_BYTES + 1),
        lambda: accounts.set_memory(0, "application_memory_bytes", 1),
        lambda: accounts.set_memory(0, "tensors_bytes", -1),
        lambda: accounts.set_host_memory("collectives_bytes", 1),
        lambda: accounts.add_error("unheard of"),  # type: ignore[arg-type]
        lambda: accounts.load("m", "m", None, {5: wrong_core}, HostMemory()),
        lambda: accounts.load("m", "m", None, {0: DeviceMemory(constants_bytes=-1)}, HostMemory()),
        lambda: accounts.unload("never loaded"),
    ):
        with pytest.raises((ValueError, IndexError)):
            call()
    assert report_of(accounts, 2.0).SerializeToString(deterministic=True) == before


def test_execution_with_wrong_results_ends_uncounted() -> None:
    accounts = Accounts(1)
    for flop, outcome, queued in (
        (-1, Outcome.COMPLETED, 0.0),
        (LARGEST_COUNT + 1, Outcome.COMPLETED, 0.0),
        (1, "fine", 0.0),
        (1, Outcome.COMPLETED, float("nan")),
        (1, Outcome.COMPLETED, -1.0),
    ):
        started = begin(accounts, 1.0)
        with pytest.raises(ValueError):
            accounts.end(started, 2.0, flop, outcome, queued)  # type: ignore[arg-type]
    report = report_of(accounts, 3.0, 1)
    assert report.cores[0].busy_seconds_total == 1.0
    assert not report.cores[0].HasField("execution_started_at_unix_seconds")
    assert (report.cores[0].executions_total, report.cores[0].flop_total) == (0, 0)
    assert not report.executions.ListFields()
    assert not report.device_latency_histogram.bucket_counts


def test_huge_counts_stay_in_the_range_of_a_report() -> None:
    accounts = Accounts(1)
    for _ in range(3):
        end(accounts, begin(accounts, 1.0), 2.0, flop=LARGEST_COUNT)
    for _ in range(300):
        accounts.add_memory(0, "tensors_bytes", LARGEST_BYTES)
    core = report_of(accounts, 3.0, 1).cores[0]
    assert core.flop_total == LARGEST_COUNT
    assert core.memory.tensors_bytes == LARGEST_BYTES


def test_cores_beyond_those_granted_are_not_reported() -> None:
    accounts = Accounts()
    accounts.load("m", "m", None, {0: DeviceMemory(), 5: DeviceMemory()}, HostMemory())
    end(accounts, begin(accounts, 1.0, core=7), 2.0)
    report = report_of(accounts, 3.0, 2)
    assert [core.local_index for core in report.cores] == [0, 1]
    assert [subgraph.neuroncore_index for subgraph in report.models[0].subgraphs] == [0]


def test_a_model_is_on_the_cores_that_are_granted_and_no_further() -> None:
    accounts = Accounts()
    memory = {index: DeviceMemory(tensors_bytes=index) for index in (2, 0, 1)}
    accounts.load("m", "m", None, memory, HostMemory(tensors_bytes=9))
    parts = report_of(accounts, 1.0).models[0].subgraphs
    assert [(part.index, part.neuroncore_index, part.device_memory.tensors_bytes) for part in parts] == [
        (0, 0, 0),
        (1, 1, 1),
    ]
    assert [part.HasField("host_memory") for part in parts] == [True, False]


def test_until_the_daemon_has_said_how_many_cores_there_are_a_thousand_may_be_named() -> None:
    accounts = Accounts()
    begin(accounts, 1.0, core=1023)
    with pytest.raises(IndexError, match="core 1024: this process has cores 0-1023"):
        begin(accounts, 1.0, core=1024)
    accounts.core_count = 2
    with pytest.raises(IndexError, match=r"^core 2: this process has cores 0-1$"):
        begin(accounts, 1.0, core=2)


def test_models_beyond_what_a_report_holds_are_refused() -> None:
    accounts = Accounts(1)
    for number in range(MOST_MODELS):
        accounts.load(number, "m", None, {}, HostMemory())
    with pytest.raises(ValueError, match="more than 512 models are loaded; the rest is not reported"):
        accounts.load("one more", "m", None, {}, HostMemory())
    accounts.unload(0)
    accounts.load("one more", "m", None, {}, HostMemory())
    assert len(report_of(accounts, 1.0, 1).models) == MOST_MODELS == 512


def test_subgraphs_beyond_what_a_report_holds_are_refused() -> None:
    accounts = Accounts(128)
    everywhere = {core: DeviceMemory(tensors_bytes=1) for core in range(128)}
    for number in range(MOST_SUBGRAPHS // 128):
        accounts.load(number, "m", None, everywhere, HostMemory())
    with pytest.raises(ValueError, match="on cores more than 1024 times; the rest is not reported"):
        accounts.load("one more", "m", None, {0: DeviceMemory()}, HostMemory())
    assert sum(len(loaded.subgraphs) for loaded in report_of(accounts, 1.0, 128).models) == MOST_SUBGRAPHS


def test_the_largest_amounts_are_taken_and_what_is_above_them_is_named() -> None:
    accounts = Accounts(1)
    accounts.add_memory(0, "tensors_bytes", LARGEST_BYTES)
    accounts.add_memory(0, "tensors_bytes", -LARGEST_BYTES)
    accounts.set_memory(0, "tensors_bytes", 0)
    accounts.load("m", "m", None, {0: DeviceMemory(tensors_bytes=LARGEST_BYTES)}, HostMemory())
    accounts.end(begin(accounts, 1.0), 2.0, LARGEST_COUNT, Outcome.COMPLETED, 1e9)
    assert report_of(accounts, 3.0, 1).total_latency_histogram.sum_seconds == 1e9 + 1
    too_much = LARGEST_BYTES + 1
    refused: list[tuple[str, Callable[[], None]]] = [
        (f"^bytes is {-too_much}, which", lambda: accounts.add_memory(0, "tensors_bytes", -too_much)),
        (f"^bytes is {too_much}, which", lambda: accounts.set_host_memory("tensors_bytes", too_much)),
        ("^tensors_bytes is -1, which", lambda: accounts.load(2, "m", None, {}, HostMemory(tensors_bytes=-1))),
        (
            f"^constants_bytes is {too_much}, which",
            lambda: accounts.load(2, "m", None, {}, HostMemory(constants_bytes=too_much)),
        ),
        ("^flop is -1, which", lambda: accounts.end(begin(accounts, 3.0), 4.0, -1, Outcome.COMPLETED, 0.0)),
        (
            "^queued_seconds is 1000000001.0",
            lambda: accounts.end(begin(accounts, 3.0), 4.0, 0, Outcome.COMPLETED, 1e9 + 1),
        ),
        (
            "^'bytes' is not a category of this memory; it has application_memory_bytes, constants_bytes,",
            lambda: accounts.set_host_memory("bytes", 1),
        ),
    ]
    for text, call in refused:
        with pytest.raises(ValueError, match=text):
            call()
    assert len(report_of(accounts, 5.0, 1).models) == 1


@pytest.mark.parametrize(
    ("text", "sent"), [("\udc80x", "?x"), ("é" * 3, "éé"), ("ab", "ab")], ids=["surrogate", "cut", "whole"]
)
def test_text_is_made_sendable(text: str, sent: str) -> None:
    assert sendable(text, 2) == sent


@pytest.mark.parametrize("uuid", ["0" * 31, "0" * 33, "g" + "0" * 31, "0" * 31 + "x", "", "0" * 32 + "-0"])
def test_an_identity_that_is_none_is_made_from_the_name(uuid: str) -> None:
    accounts = Accounts(1)
    accounts.load(1, "m", uuid, {}, HostMemory())
    accounts.load(2, "m", None, {}, HostMemory())
    one, other = report_of(accounts, 1.0, 1).models
    assert one.uuid == other.uuid != uuid.replace("-", "")
