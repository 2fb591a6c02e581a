"""Files of counters, read in place, and the instance metadata service."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.sources.sysfs import SysfsSource
from neurond.sources.sysfs.device_reader import CounterFiles, DescriptorBudget, may_be_replaced
from neurond.sources.sysfs.source import MetadataService

from neurontools.driver.sysfs_files import parse_count
from neurontools.testing import DriverTree
from tests.harness.answering_server import ReceivedRequest, Reply, answering


class _Budget(DescriptorBudget):
    def __init__(self, left: int) -> None:
        self.left = left


def _open_descriptors(directory: Path) -> int:
    return sum(Path(file.path).parent == directory for file in psutil.Process().open_files())


def _files(directory: Path, count: int) -> list[str]:
    for number in range(count):
        (directory / f"f{number}").write_text(f"{number}\n")
    return [f"f{number}" for number in range(count)]


@pytest.mark.parametrize(("may_be_replaced", "calls"), [(False, 5), (True, 10)])  # a pread a file, and an fstat
def test_files_are_opened_once_and_read_in_place(tmp_path: Path, may_be_replaced: bool, calls: int) -> None:
    files = CounterFiles(str(tmp_path), _files(tmp_path, 5), _Budget(100), may_be_replaced=may_be_replaced)
    assert files.read() == [0, 1, 2, 3, 4]
    files.pop_call_count()
    (tmp_path / "f2").write_text("22\n")  # in place, as the driver does
    assert files.read() == [0, 1, 22, 3, 4]
    assert files.pop_call_count() == calls
    files.close()


def test_descriptors_beyond_the_budget_are_not_kept(tmp_path: Path) -> None:
    budget = _Budget(3)
    files = CounterFiles(str(tmp_path), _files(tmp_path, 8), budget)
    assert files.read() == files.read() == list(range(8))
    assert (budget.left, _open_descriptors(tmp_path)) == (0, 3)
    files.close()
    assert (budget.left, _open_descriptors(tmp_path)) == (3, 0)


def test_a_file_that_appears_is_found_after_some_reads(tmp_path: Path) -> None:
    files = CounterFiles(str(tmp_path), ["late"], _Budget(9))
    assert files.read() == [None]
    assert files.problems == {"No such file or directory": ("late", 1)}
    (tmp_path / "late").write_text("5")  # no newline
    values = [list(files.read()) for _ in range(20)]
    assert values[-1] == [5]
    assert files.problems == {}
    files.close()


def test_what_is_no_file_is_neither_read_nor_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("/dev/zero")
    files = CounterFiles(str(tmp_path), ["pipe", "directory", "link", "with\0nul"], _Budget(9))
    assert files.read() == [None] * 4
    assert sum(count for _, count in files.problems.values()) == 4
    files.close()
    files = CounterFiles("/proc/self", ["mem", "oom_score_adj"], _Budget(9))  # memory can't be read at 0: EIO
    for _ in range(3):  # it is asked for again
        assert files.read()[0] is None
        assert files.problems["Input/output error"] == ("mem", 1)
    files.close()


def test_a_replaced_file_is_read_anew_and_its_old_one_closed(tmp_path: Path) -> None:
    budget = _Budget(9)
    files = CounterFiles(str(tmp_path), _files(tmp_path, 1), budget)
    for number in range(50):
        (tmp_path / "new").write_text(f"{number}\n")
        (tmp_path / "new").replace(tmp_path / "f0")
        assert files.read() == [number]
    assert budget.left == 8
    files.close()
    assert [may_be_replaced(path) for path in ("/sys/kernel", "/tmp", "/nowhere")] == [False, True, True]


def test_the_limit_of_open_files_is_raised_as_far_as_needed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
        assert DescriptorBudget(1000).left == min(1000, hard - 512)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(1512, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@given(st.integers(0, 2**64 - 1), st.sampled_from([b"", b"\n"]), st.binary(max_size=40))
def test_a_count_is_as_the_driver_writes_it(value: int, end: bytes, raw: bytes) -> None:
    assert parse_count(str(value).encode() + end) == value
    other = parse_count(raw)
    assert other is None or (str(other).zfill(len(raw.rstrip(b"\n"))).encode() == raw.removesuffix(b"\n"))


_TOKEN = "token-of-this-test"
_ANSWERS = {
    "instance-type": "trn1n.32xlarge",
    "instance-id": "i-0aaaaaaaaaaaaaaaa",
    "placement/availability-zone": "us-east-1a",
    "placement/availability-zone-id": "use1-az1",
    "placement/region": "us-east-1",
    "ami-id": "ami-0bbbbbbbbbbbbbbbb",
    "mac": "0a:00:00:00:00:01",
    "network/interfaces/macs/0a:00:00:00:00:01/subnet-id": "subnet-0ccc",
}


def _metadata(asked: ReceivedRequest) -> Reply:
    """As the instance metadata service, version 2: nothing without a token. The name tag is not opened to it."""
    text = None
    if asked.method == "PUT" and "X-aws-ec2-metadata-token-ttl-seconds" in asked.headers:
        text = _TOKEN if asked.path == "/latest/api/token" else None
    elif asked.method == "GET" and asked.headers["X-aws-ec2-metadata-token"] == _TOKEN:
        text = _ANSWERS.get(asked.path.removeprefix("/latest/meta-data/"))
    return Reply(status=404) if text is None else Reply(text.encode())


@pytest.fixture
def endpoint() -> Iterator[str]:
    with answering(_metadata) as (url, _):
        yield url


def _asked(environment: dict[str, str]) -> MetadataService:
    service = MetadataService(environment)
    if service.thread is not None:
        service.thread.join()
    return service


def test_no_answer_is_a_warning_and_a_switch_keeps_it_silent() -> None:
    service = _asked({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"})
    assert (service.facts, "does not answer" in service.warning) == ({}, True)
    assert _asked({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "ftp://x"}).warning
    assert MetadataService({"AWS_EC2_METADATA_DISABLED": "true"}).thread is None


def test_the_source_takes_the_facts_in(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    with DriverTree("trn1n.32xlarge") as tree:
        tree.write("sys/devices/virtual/dmi/id/product_name", "\n")
        source = SysfsSource(tree.roots, use_metadata_service=True)
        assert source.instance.instance_type == "trn1"
        assert source.metadata is not None
        assert source.metadata.thread is not None
        source.metadata.thread.join()
        source.refresh()
        source.close()
    instance = source.instance
    assert (instance.instance_type, instance.inferred_fields) == ("trn1n.32xlarge", ())
    assert source.metadata.warning == ""
    told = (instance.instance_id, instance.availability_zone, instance.availability_zone_id)
    assert told == ("i-0aaaaaaaaaaaaaaaa", "us-east-1a", "use1-az1")
    told = (instance.region, instance.ami_id, instance.subnet_id)
    assert told == ("us-east-1", "ami-0bbbbbbbbbbbbbbbb", "subnet-0ccc")
