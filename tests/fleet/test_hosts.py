"""Hosts as they are named on the command line and in files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.errors import UserError
from neurontools.fleet.hosts import Place, Reach, expanded, hostfile_text, named_hosts, read_hostfile


def test_names_stand_for_ssh_and_places_for_themselves() -> None:
    found = named_hosts("a, unix:/run/b.sock,ssh:root@c").places
    assert found == (
        Place("a", Reach.SSH, "a"),
        Place("b", Reach.SOCKET, "/run/b.sock"),
        Place("root@c", Reach.SSH, "root@c"),
    )


def test_addresses_over_tls_are_named_by_their_hosts() -> None:
    found = named_hosts("grpcs://trn[1-2]:8001, grpcs://[::1]:8002,b grpcs://10.0.0.1:1").places
    assert found == (
        Place("trn1", Reach.TLS, "//trn1:8001"),
        Place("trn2", Reach.TLS, "//trn2:8001"),
        Place("::1", Reach.TLS, "//[::1]:8002"),
        Place("b", Reach.TLS, "//10.0.0.1:1"),
    )
    assert hostfile_text(found).splitlines()[2:] == ["::1 grpcs://[::1]:8002", "b grpcs://10.0.0.1:1"]


def test_lists_as_slurm_writes_them() -> None:
    assert expanded("trn[01-03,7]-x[1-2]") == [
        "trn01-x1", "trn01-x2", "trn02-x1", "trn02-x2", "trn03-x1", "trn03-x2", "trn7-x1", "trn7-x2",
    ]  # fmt: skip
    assert [place.name for place in named_hosts("trn[1-2,4],login2").places] == ["trn1", "trn2", "trn4", "login2"]


def test_a_hostfile_reads_back_what_was_written(tmp_path: Path) -> None:
    places = (Place("a", Reach.SOCKET, "/tmp/a.sock"), Place("b", Reach.SSH, "root@b"))
    file = tmp_path / "hosts"
    file.write_text("# fleet\n\n" + hostfile_text(places) + "c # the third\n")
    hosts = read_hostfile(str(file))
    assert hosts.places == (*places, Place("c", Reach.SSH, "c"))
    assert hosts.troubles == ()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-oProxyCommand=evil", "is no name of a host"),
        ("a ssh:-oProxyCommand=evil", "is nothing that ssh could be given"),
        ("a ssh:b;rm", "is nothing that ssh could be given"),
        ("a tcp:b:1", "is no place"),
        ("a grpcs://b", "is no address; write grpcs://HOST:PORT"),
        ("a[1-2] grpcs://b:1", "several names can't have one place"),
        ("a unix:relative", "begins with a slash"),
        ("a[1-2] unix:/x", "several names can't have one place"),
        ("a[1-", "brackets that don't match"),
        ("a[2-1]", "is no range of numbers"),
        ("a[1-999999999]", "is no range of numbers"),
        ("a[1-200][1-200]", "more than 10000 hosts"),
        ("\x1b[2J", "brackets that don't match"),
        ("x" * 300, "is no name of a host"),
        ("good", "good is named twice"),
    ],
)
def test_a_wrong_line_is_told_and_the_others_count(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"good\n{line}\nbetter\n")
    hosts = read_hostfile(str(file))
    assert [place.name for place in hosts.places] == ["good", "better"]
    (trouble,) = hosts.troubles
    assert trouble.startswith(f"{file}:2: ")
    assert why in trouble
    assert trouble.isprintable()


def test_ten_thousand_lines_with_many_wrong_ones(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("".join(f"host-{n} {'?' if n % 100 == 0 else ''}\n" for n in range(10_000)))
    hosts = read_hostfile(str(file))
    assert len(hosts.places) == 9_900
    assert len(hosts.troubles) == 21
    assert hosts.troubles[-1] == "and 80 more lines are wrong"


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda file: None, "there is no such file"),
        (lambda file: file.mkdir(), "is a directory"),
        (lambda file: file.write_bytes(b"a\n" * 2**21 + b"b"), "is larger than 4 MiB"),
    ],
)
def test_a_file_that_is_none_is_told_in_a_line(tmp_path: Path, make: object, cause: str) -> None:
    file = tmp_path / "hosts"
    make(file)  # type: ignore[operator]
    with pytest.raises(UserError, match=cause):
        read_hostfile(str(file))


def test_nobody_named() -> None:
    with pytest.raises(UserError, match="names no host"):
        named_hosts(" , ")
    with pytest.raises(UserError, match="is no name of a host"):
        named_hosts("-x")


@given(st.text(max_size=60))
def test_whatever_is_named_is_a_host_or_a_trouble(text: str) -> None:
    try:
        hosts = named_hosts(text)
    except UserError as error:
        assert "\n" not in str(error)
        return
    assert all(not place.address.startswith("-") for place in hosts.places)
    assert all(trouble.isprintable() for trouble in hosts.troubles)
