from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from neurond.sources.sysfs import SysfsSource
from neurond.sources.sysfs.metadata_service import MetadataService

from neurontools.testing import DriverTree

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


class _Service(BaseHTTPRequestHandler):
    """As the instance metadata service, version 2: nothing without a token. The name tag is not opened to it."""

    def do_PUT(self) -> None:
        has_life = self.headers["X-aws-ec2-metadata-token-ttl-seconds"] is not None
        self._answer(_TOKEN if self.path == "/latest/api/token" and has_life else None)

    def do_GET(self) -> None:
        is_known = self.headers["X-aws-ec2-metadata-token"] == _TOKEN
        self._answer(_ANSWERS.get(self.path.removeprefix("/latest/meta-data/")) if is_known else None)

    def _answer(self, text: str | None) -> None:
        self.send_response(200 if text is not None else 404)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def _asked(environment: dict[str, str]) -> MetadataService:
    service = MetadataService(environment)
    if service.thread is not None:
        service.thread.join()
    return service


def test_all_facts(endpoint: str) -> None:
    service = _asked({"AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint})
    assert service.warning == ""
    assert service.facts == {
        "instance_type": "trn1n.32xlarge",
        "instance_id": "i-0aaaaaaaaaaaaaaaa",
        "availability_zone": "us-east-1a",
        "availability_zone_id": "use1-az1",
        "region": "us-east-1",
        "ami_id": "ami-0bbbbbbbbbbbbbbbb",
        "subnet_id": "subnet-0ccc",
    }


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
    assert (instance.instance_id, instance.region, instance.subnet_id) == (
        "i-0aaaaaaaaaaaaaaaa",
        "us-east-1",
        "subnet-0ccc",
    )
