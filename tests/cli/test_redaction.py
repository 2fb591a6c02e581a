from __future__ import annotations

import socket
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.cli.doctor.bundle import Redactor
from neurontools.model import Attribution, Job, PodAllocation, Snapshot
from tests.harness.snapshots import process_of, snapshot_of


def host() -> Snapshot:
    process = replace(
        process_of(4242, "python3 /home/ann/train.py --key s3cr3t", [0, 1]),
        user="ann",
        uid=1234,
        tag="secret-project",
        job=Job("pod research/llama-7"),
        attribution=Attribution(pod_name="llama-7", pod_namespace="research", slurm_job_id="17"),
    )
    taken = snapshot_of("trn1.32xlarge", [process])
    return replace(
        taken,
        instance=replace(taken.instance, instance_id="i-0123456789abcdef0", driver_version="2.30.2.0"),
        pod_allocations=(PodAllocation("llama-7", "research", "main"),),
        warnings=("PID 4242 of ann (secret-project) in research/llama-7 listens on 10.1.2.3:8000",),
    )


def test_a_snapshot_keeps_what_happened_and_loses_who_did_it() -> None:
    redactor = Redactor()
    redactor.register_snapshot(host())
    told = redactor.value(asdict(host()))
    text = str(told)
    for secret in ("of ann ", *"train.py s3cr3t secret-project llama-7 research 1234, 10.1.2.3 i-0123".split()):
        assert secret not in text, secret
    assert told["processes"][0]["pid"] == 4242
    assert told["processes"][0]["command"] == "<command>"
    assert told["processes"][0]["user"].startswith("<user-")
    assert told["instance"]["driver_version"] == "2.30.2.0"
    assert told["instance"]["instance_type"] == "trn1.32xlarge"
    assert told["processes"][0]["user"] in told["warnings"][0], "the same name is the same word everywhere"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("from 10.0.0.17:443 to 2001:db8::17", "from <address>:443 to <address>"),
        ("fe80::1ff:fe23:4567:890a", "<address>"),
        ("127.0.0.1 and ::1 stay", "127.0.0.1 and ::1 stay"),
        ("Neuron Driver Started with Version:2.24.7.0-abc", "Neuron Driver Started with Version:2.24.7.0-abc"),
        ("grpcio==1.71.2", "grpcio==1.71.2"),
        ("at 12:34:56 on 0000:10:1c.0", "at 12:34:56 on 0000:10:1c.0"),
        ("0a:1b:2c:3d:4e:5f", "<mac>"),
        ("ip-10-0-0-1.ec2.internal is i-0123456789abcdef0", "<host> is <aws-id>"),
        ("arn:aws:iam::123456789012:role/x", "<arn>"),
        ("mail ann@example.org", "mail <mail>"),
        ("https://user:pass@example.org/x", "https://<login>@example.org/x"),
        ("/home/ann/x and /opt/x", "/home/<user>/x and /opt/x"),
    ],
)
def test_addresses_are_told_from_what_looks_like_them(text: str, shown: str) -> None:
    assert Redactor().text(text) == shown


def test_the_name_of_this_host_is_hidden() -> None:
    name = socket.gethostname()
    shown = Redactor().text(f"kernel: [{name}] nd0")
    assert shown == ("kernel: [<host-1>] nd0" if len(name) > 2 and name != "localhost" else f"kernel: [{name}] nd0")


@given(st.text(max_size=200), st.text(min_size=3, max_size=20).filter(lambda word: word.strip() == word))
def test_no_text_is_a_fault(text: str, word: str) -> None:
    redactor = Redactor()
    redactor.placeholder(word, "user")
    redactor.text(text)
    redactor.value({"user": text, "command": text, "list": [text, 1, None]})
