"""Hosts of a file as Prometheus discovers targets from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neurontools.errors import UserError
from neurontools.fleet.file_sd import read_file_sd
from neurontools.fleet.hosts import Place, Reach, read_hostfile


def test_targets_are_hosts_with_their_labels(tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    groups = [
        {"targets": ["10.0.0.1:8000"], "labels": {"node": "trn-1", "rack": "a 1", "__meta_x": "y"}},
        {"targets": ["trn-2:8000", "[::1]:8000", "-oProxyCommand=x:8000"], "labels": {"node": "both"}},
        {"targets": ["trn-3"], "labels": {"node": "trn-3", "__neuron_place__": "unix:/run/a b.sock"}},
        {"targets": [], "labels": None},
    ]
    file.write_text(json.dumps(groups))
    found = read_file_sd(str(file))
    assert found.troubles == (f"{file}: group 2: '-oProxyCommand=x' is no name of a host",)
    assert found.places == (
        Place("trn-1", Reach.SSH, "10.0.0.1", (("rack", "a_1"),)),
        Place("trn-2", Reach.SSH, "trn-2"),
        Place("::1", Reach.SSH, "::1"),
        Place("trn-3", Reach.SOCKET, "/run/a b.sock"),
    )


def test_a_wrong_group_is_told_and_the_others_count(tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    file.write_text(json.dumps([{"targets": ["a:1"]}, [], {"targets": [1]}, {"targets": ["-x"]}, {"targets": ["b:1"]}]))
    found = read_file_sd(str(file))
    assert [place.name for place in found.places] == ["a", "b"]
    assert [trouble.partition(": group ")[2] for trouble in found.troubles] == [
        "2: has no list of targets",
        "3: has a target or a label that is no text",
        "4: '-x' is no name of a host",
    ]


@pytest.mark.parametrize(
    ("name", "text", "cause"),
    [
        ("hosts.yml", "- targets: [a]", "is YAML, which is not read; Prometheus reads the same as JSON"),
        ("hosts.json", "- targets: [a]", "is no JSON"),
        ("hosts.json", "[" * 200_000, "is no JSON"),
        ("hosts.json", "{}", "is no list"),
    ],
)
def test_a_file_that_is_none_is_told_in_a_line(tmp_path: Path, name: str, text: str, cause: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UserError) as raised:
        read_file_sd(str(file))
    assert cause in str(raised.value)
    assert "\n" not in str(raised.value)


def test_labels_of_a_hostfile(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("trn[1-2] rack=a1 row=3\nc unix:/run/c=1 d.sock rack=\ne ssh:root@e rack=b\n")
    assert read_hostfile(str(file)).places == (
        Place("trn1", Reach.SSH, "trn1", (("rack", "a1"), ("row", "3"))),
        Place("trn2", Reach.SSH, "trn2", (("rack", "a1"), ("row", "3"))),
        Place("c", Reach.SOCKET, "/run/c=1 d.sock", (("rack", ""),)),
        Place("e", Reach.SSH, "root@e", (("rack", "b"),)),
    )
