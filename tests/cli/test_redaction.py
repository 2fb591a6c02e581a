"""The support bundle contains none of the secrets that are planted in everything that it reads."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neurontools.cli.doctor.bundle import public_value
from neurontools.cli.doctor.known_texts import KnownTexts
from neurontools.model import Attribution, Finding, Health, Job, LoadedModel, PodAllocation, Severity, Snapshot
from neurontools.testing import DriverTree
from tests.harness.attached_child import TAG
from tests.harness.attached_process import AttachedProcess
from tests.harness.command import RunCommand, calls
from tests.harness.running_daemon import RunningDaemon
from tests.harness.snapshots import process_of, snapshot_of
from tests.harness.waiting import wait_until


def _letters(seed: str, length: int) -> str:
    return base64.b32encode(hashlib.sha512(seed.encode()).digest()).decode()[:length]


def _mixed(seed: str, length: int) -> str:
    return base64.b64encode(hashlib.sha512(seed.encode()).digest()).decode()[:length].replace("+", "x")


def _hex(seed: str, length: int) -> str:
    return hashlib.sha512(seed.encode()).hexdigest()[:length]


KINDS: dict[str, Callable[[str], str]] = {
    "password": lambda seed: f"hunter{int(_hex(seed, 4), 16)}",
    "passphrase": lambda seed: f"correct horse {_letters(seed, 9).lower()} staple",
    "AWS access key": lambda seed: "AKIA" + _letters(seed, 16),
    "AWS secret key": lambda seed: "/".join((_mixed(seed, 13), _mixed(seed + "b", 13), _mixed(seed + "c", 12))),
    "32 characters": lambda seed: _letters(seed, 32).lower(),
    "hexadecimal": lambda seed: _hex(seed, 40),
    "JWT": lambda seed: f"eyJ{_mixed(seed, 20)}.eyJ{_mixed(seed + 'b', 20)}.{_mixed(seed + 'c', 30)}",
    "GitHub token": lambda seed: "ghp_" + _mixed(seed, 36).replace("/", "0"),
    "Hugging Face token": lambda seed: "hf_" + _mixed(seed, 34).replace("/", "0"),
    "webhook": lambda seed: f"https://hooks.example.org/services/T{_letters(seed, 8)}/B{_mixed(seed, 24)}",
    "login in a URL": lambda seed: f"postgres://app:{_letters(seed, 9)}@db-{_hex(seed, 4)}.internal:5432/x",
    "private key": lambda seed: f"-----BEGIN PRIVATE KEY-----{_mixed(seed, 48)}",
    "bearer": lambda seed: f"Bearer {_mixed(seed, 22)}",
    "mail": lambda seed: f"{_letters(seed, 6).lower()}@example.org",
    "host name": lambda seed: f"trn-{_hex(seed, 5)}.prod.example.org",
    "IPv4 address": lambda seed: f"10.{int(_hex(seed, 2), 16)}.31.{int(_hex(seed + 'b', 2), 16)}",
    "IPv6 address": lambda seed: f"2001:db8:{_hex(seed, 4)}::{_hex(seed + 'b', 4)}",
    "ARN": lambda seed: f"arn:aws:iam::{int(_hex(seed, 9), 16)}:role/{_letters(seed, 6)}",
    "instance": lambda seed: "i-" + _hex(seed, 17),
    "number": lambda seed: str(10**9 + int(_hex(seed, 8), 16)),
    "path": lambda seed: f"/home/{_letters(seed, 7).lower()}/model-{_hex(seed, 4)}.py",
}


class Plant:
    """Gives a new secret at each call, of each kind in turn, and remembers it."""

    def __init__(self) -> None:
        self.secrets: list[str] = []
        self._kinds: Iterator[tuple[str, Callable[[str], str]]] = iter(())

    def __call__(self) -> str:
        try:
            _, make = next(self._kinds)
        except StopIteration:
            self._kinds = iter(KINDS.items())
            _, make = next(self._kinds)
        self.secrets.append(make(f"secret {len(self.secrets)}"))
        return self.secrets[-1]

    def found_in(self, text: str) -> list[str]:
        """Returns the planted secrets that a text contains, as they are, in JSON or in their longest word."""
        lower = text.lower()

        def parts(secret: str) -> set[str]:
            words = secret.replace("/", " ").replace("@", " ").replace(":", " ").split()
            return {secret.lower(), json.dumps(secret)[1:-1].lower(), max(words, key=len).lower()}

        return [secret for secret in self.secrets if any(part in lower for part in parts(secret))]


@pytest.fixture(scope="module")
def known() -> KnownTexts:
    return KnownTexts(("trn1.2xlarge",))


def planted(value: Any, plant: Plant) -> Any:
    """Returns a copy of a dataclass in which each text is a secret, also in the middle of a message."""
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: planted(getattr(value, field.name), plant) for field in fields(value)})
    if isinstance(value, tuple):
        return tuple(planted(part, plant) for part in value)
    return plant() if type(value) is str else value


def full_snapshot() -> Snapshot:
    process = replace(
        process_of(4242, "x", [0]),
        user="x",
        uid=1234,
        job=Job("x", run_id="x"),
        attribution=Attribution("x", "x", "x", "x", "x", "x", "x", "x"),
        models=(LoadedModel(1, "x", "x", running=True),),
    )
    finding = Finding("idle", Severity.WARNING, "x", "x", 1.0, part="x", job="x")
    taken = snapshot_of("trn1.2xlarge", [process])
    instance = replace(taken.instance, **dict.fromkeys(INSTANCE_TEXTS, "x"))  # type: ignore[arg-type]
    return replace(
        taken,
        instance=instance,
        pod_allocations=(PodAllocation("x", "x", "x"),),
        health=Health(findings=(finding,), unknown_device_indices=(0,), unknown_reasons=("x",)),
        warnings=("x",),
    )


INSTANCE_TEXTS = ("instance_name", "availability_zone", "ami_id", "subnet_id", "ultraserver_id", "driver_version")


def test_no_text_of_a_snapshot_is_public_and_every_number_is(known: KnownTexts) -> None:
    plant = Plant()
    shown = [public_value(asdict(planted(full_snapshot(), plant)), known) for _ in range(4)]
    assert len(plant.secrets) > 100
    assert plant.found_in(json.dumps(shown)) == []
    public = shown[0]
    assert public["processes"][0]["pid"] == 4242
    assert public["processes"][0]["uid"] is None
    assert public["processes"][0]["user"].startswith("<user-")
    real = public_value(asdict(snapshot_of("trn1.2xlarge")), known)
    assert real["instance"]["instance_type"] == "trn1.2xlarge"
    assert (real["source"], real["instance"]["topology"]) == ("simulated", "single")


@pytest.mark.parametrize(
    "message",
    [
        "no daemon answers (tried {}, {})",
        "{}: it is not a socket, {}",
        "there is no attach socket next to {} {}",
        "NEURON_RT_NUM_CORES={}: not a number of cores; give a whole number from 1 to the cores of the host{}",
        "PID 17 of {} ({}) holds cores 0-3 for 12 s",
        "webhook {} failed: {}",
        "{} {}",
        "password: {}; token={}",
    ],
)
def test_a_secret_in_a_message_is_replaced_and_the_message_stays(message: str, known: KnownTexts) -> None:
    plant = Plant()
    for _ in range(len(KINDS)):
        text = known.public(message.format(plant(), plant()))
        assert plant.found_in(text) == [], text
    if message.startswith("no daemon"):
        assert text.startswith("no daemon answers (tried <")


def test_a_bundle_of_a_host_full_of_secrets_contains_none(
    tree: DriverTree, watching: RunningDaemon, clean_environment: dict[str, str], tmp_path: Path
) -> None:
    plant = Plant()
    for index in range(21):
        tree.write(f"{tree.device_path(0)}/{plant().replace('/', '_')}", plant())
        tree.write(f"{tree.device_path(0)}/info/{_letters(str(index), 5)}", plant())
    with Path(tree.roots.dev, "kmsg").open("a", encoding="utf-8") as log:
        for number in range(21):
            print(f"{number % 2 * 8 + 3},{number + 100},5,-;neuron: nd0: user {plant()}", file=log)
            text = f"NEURON_HW_ERR=X{plant()} instance-id={plant()} hostname={plant()} nd-id=0 serial-num={plant()}"
            print(f"3,{number + 200},6,-;kernel: {text} action={plant()}", file=log)
    environment = {f"NEURON_RT_{_letters(name, 6)}": plant() for name in KINDS}
    environment |= {name: plant() for name in ("NEURON_RT_NUM_CORES", "NEURON_CC_FLAGS", "NEURON_RT_ROOT_COMM_ID")}
    environment |= {f"NEURON_{plant().replace('=', '_')}": "1" for _ in KINDS} | {"PATH": f"/x/{plant()}"}
    doctor = calls("neuron-doctor", clean_environment | tree.environment | environment)
    path = tmp_path / "report.tar.gz"
    with ExitStack() as stack:
        for _ in range(2):
            arguments = [word for _ in KINDS for word in ("--token", plant())]
            variables = {TAG: plant(), "NEURON_PROCESS_TAG": plant(), "POD_NAME": plant()}
            process = stack.enter_context(AttachedProcess(watching, "1", "--", *arguments, environment=variables))
            wait_until(partial(watching.find, process.pid))
        done = doctor("--bundle", str(path), "--yes", "--socket", watching.socket)
    assert done.returncode == 0, done.stderr
    files = members(path)
    assert len(plant.secrets) > 100
    assert {name: plant.found_in(content) for name, content in files.items() if plant.found_in(content)} == {}
    assert f'"pid": {process.pid}' in files["snapshot.json"]
    assert "NEURON_CC_FLAGS=<value-" in files["variables.txt"]
    assert "stats/status/success/total" in files["driver-tree.txt"]
    assert "NEURON_HW_ERR=OTHER_ERROR nd-id=0" in files["kernel-log.txt"]
    assert f"neurond {json.loads(files['report.json'])['version']} (PID {watching.pid}" in files["report.txt"]
    assert "grpcio==" in files["packages.txt"]


def members(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive.getmembers()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def test_a_bundle_is_a_new_private_file_and_never_a_link(clean_environment: dict[str, str], tmp_path: Path) -> None:
    doctor: RunCommand = calls("neuron-doctor", clean_environment)
    victim, link = tmp_path / "victim", tmp_path / "link.tar.gz"
    victim.write_text("precious")
    for target in (victim, tmp_path / "absent"):
        link.symlink_to(target)
        refused = doctor("--bundle", str(link), "--yes")
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "give the name of a new file" in refused.stderr
        link.unlink()
    assert sorted(os.listdir(tmp_path)) == ["victim"]  # noqa: PTH208
    assert victim.read_text() == "precious"
    existing = tmp_path / "old.tgz"
    existing.write_text("older")
    assert doctor("--bundle", str(existing), "--yes").returncode == 1
    assert existing.read_text() == "older"
