"""Host lists: `--hosts`, hostfiles and Prometheus file_sd files.

A hostfile has one host per line: a name, then optionally its address (`unix:/path` of a socket, `ssh:destination`, or
`grpcs://host:port` for a daemon that serves over TLS), then labels such as `rack=a1`. By default a host is reached by
SSH to its name. `trn[1-4,7]` expands to five hosts, as in Slurm. A malformed line is reported and skipped.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from neurontools.rpc.remote_address import SCHEME, remote_address
from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt

MOST_HOSTS = 10_000
_MOST_FILE_BYTES = 4 * 2**20
_MOST_TROUBLES = 20
_LONGEST_NAME = 253
_NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:@%+-]*")  # no leading dash, which ssh would take as an option
_LABEL = re.compile(r"(?:^|\s)([A-Za-z_][A-Za-z0-9_]{0,63})=(\S*)$")
MOST_LABELS, LONGEST_LABEL = 16, 128
_BRACKETS = re.compile(r"([^\[\]]*)\[([^\[\]]*)\](.*)")


class Reach(StrEnum):
    """How the daemon of a host is reached: by a local socket, by SSH, or over TLS."""

    SOCKET = "unix"
    SSH = "ssh"
    TLS = "grpcs"


_TLS = f"{Reach.TLS}:"


@dataclass(frozen=True, slots=True)
class HostAddress:
    """A host: its name in the view, and the address of its daemon."""

    name: str
    reach: Reach
    address: str  # path of the daemon's socket, ssh destination, or //host:port
    labels: tuple[tuple[str, str], ...] = ()  # label names and values, for grouping

    @property
    def text(self) -> str:
        """The address in the form of a hostfile."""
        return f"{self.reach}:{self.address}"


@dataclass(frozen=True, slots=True)
class HostList:
    """Hosts in the given order, each name once, and one line for each problem with the given names."""

    places: tuple[HostAddress, ...]
    problems: tuple[str, ...] = ()


def format_hostfile(places: Iterable[HostAddress]) -> str:
    return "".join(
        " ".join((place.name, place.text, *(f"{name}={value}" for name, value in place.labels))) + "\n"
        for place in places
    )


def read_hostfile(path: str) -> HostList:
    """Reads a hostfile. Raises UserError if it cannot be read or is too large."""
    collected = HostListBuilder()
    for number, line in enumerate(read_host_file("--hostfile", path, "a host name on each line").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if text:
            collected.add(text, f"{excerpt(path, 200)}:{number}")
    return collected.hosts()


def read_host_file(flag: str, path: str, content: str) -> str:
    """Reads the text of a file with host names. Raises UserError if it cannot be read or is too large."""
    at = f"{flag} {excerpt(path, 200)}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise UserError(f"{at}: is a directory; give a file with {content}", EXIT_USAGE)
            data = _read(descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise UserError(f"{at}: there is no such file; give one with {content}", EXIT_NOT_FOUND) from None
    except OSError as error:
        raise UserError(f"{at}: {error.strerror}; give a readable file", EXIT_USAGE) from None
    if len(data) > _MOST_FILE_BYTES:
        raise UserError(f"{at}: is larger than {_MOST_FILE_BYTES >> 20} MiB; name fewer hosts", EXIT_USAGE)
    return data.decode("utf-8", "replace")


def parse_hosts_option(text: str) -> HostList:
    """Parses `--hosts`: names or addresses, separated by commas. Raises UserError if no host is valid."""
    collected = HostListBuilder()
    for part in _split(text):
        collected.add(part, "--hosts")
    hosts = collected.hosts()
    if not hosts.places:
        problem = hosts.problems[0] if hosts.problems else "--hosts: names no host"
        raise UserError(f"{problem}; give names with commas between them, such as trn-1,trn-2", EXIT_USAGE)
    return hosts


class HostListBuilder:
    def __init__(self) -> None:
        self._places: dict[str, HostAddress] = {}
        self._problems: list[str] = []
        self._omitted_problems = 0

    def add(self, text: str, at: str) -> None:
        """Adds the hosts that a text names, such as a line of a hostfile. Records a problem if it is malformed."""
        try:
            for place in _places(text):
                if len(self._places) >= MOST_HOSTS:
                    raise ValueError(f"more than {MOST_HOSTS} hosts; the rest is ignored")
                if place.name in self._places:
                    raise ValueError(f"{place.name} is named twice; the first entry counts")
                self._places[place.name] = place
        except ValueError as error:
            self.add_problem(at, str(error))

    def add_problem(self, at: str, cause: str) -> None:
        """Records a problem; beyond a limit, only counts it."""
        if len(self._problems) < _MOST_TROUBLES:
            self._problems.append(f"{at}: {cause}")
        else:
            self._omitted_problems += 1

    def hosts(self) -> HostList:
        more = (f"and {self._omitted_problems} more lines are invalid",) if self._omitted_problems else ()
        return HostList(tuple(self._places.values()), (*self._problems, *more))


def _places(text: str) -> list[HostAddress]:
    """Parses a line of a hostfile. Raises ValueError with the cause if it is malformed."""
    name, _, where = text.partition(" ")
    where, labels = _labels_of(where.strip())
    if not where and name.startswith(_TLS):
        return [_over_tls(None, address, labels) for address in _expanded_addresses(name)]
    if not where and ":" in name and name.partition(":")[0] in tuple(Reach):
        where = name
        name = _name_of(where)
    names = expand_brackets(name)
    for found in names:
        if not _NAME.fullmatch(found) or len(found) > _LONGEST_NAME:
            raise ValueError(f"{excerpt(found, 60)!r} is not a host name")
    if not where:
        return [HostAddress(found, Reach.SSH, found, labels) for found in names]
    kind, colon, address = where.partition(":")
    if not colon or kind not in tuple(Reach):
        raise ValueError(
            f"{excerpt(where, 60)!r} is not an address; write unix:/path, ssh:destination or grpcs://host:port"
        )
    if len(names) > 1:
        raise ValueError("several names cannot share one address; give each its own line")
    reach = Reach(kind)
    if reach is Reach.TLS:
        return [_over_tls(names[0], where, labels)]
    if reach is Reach.SSH and not _NAME.fullmatch(address):
        raise ValueError(f"{excerpt(address, 60)!r} is not a valid ssh destination")
    if reach is Reach.SOCKET and (not address.startswith("/") or "\0" in address):
        raise ValueError("the path of a socket must begin with a slash")
    return [HostAddress(names[0], reach, address, labels)]


def _labels_of(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Splits the labels off the end of a line. Returns the text before them, and the labels."""
    labels: list[tuple[str, str]] = []
    while found := _LABEL.search(text):
        if len(labels) >= MOST_LABELS:
            raise ValueError(f"more than {MOST_LABELS} labels")
        labels.insert(0, (found[1], excerpt(found[2], LONGEST_LABEL)))
        text = text[: found.start()].rstrip()
    return text, tuple(labels)


def _expanded_addresses(text: str) -> list[str]:
    """Expands `grpcs://trn[1-4]:8001` to four addresses. Keeps brackets around an IPv6 address."""
    return [text] if text.startswith(f"{SCHEME}[") and text.partition("]")[0].count(":") > 1 else expand_brackets(text)


def _over_tls(name: str | None, where: str, labels: tuple[tuple[str, str], ...]) -> HostAddress:
    address = remote_address(where)
    return HostAddress(address.host if name is None else name, Reach.TLS, address.text.removeprefix(_TLS), labels)


def _name_of(where: str) -> str:
    """Returns the name of a host that is given by its address only."""
    kind, _, address = where.partition(":")
    return address if kind == Reach.SSH else address.rpartition("/")[2].removesuffix(".sock")


def expand_brackets(text: str) -> list[str]:
    """Expands a Slurm host list such as `trn[01-03,7]`. Raises ValueError if it is malformed."""
    found = _BRACKETS.fullmatch(text)
    if found is None:
        if "[" in text or "]" in text:
            raise ValueError(f"{excerpt(text, 60)!r} has brackets that don't match")
        return [text]
    before, inside, after = found.groups()
    names = []
    for part in inside.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        is_range = all(end.isascii() and end.isdigit() and len(end) < 10 for end in (first, last))
        if not is_range or not 0 <= int(last) - int(first) < MOST_HOSTS:
            raise ValueError(f"{excerpt(part, 60)!r} is not a range of numbers")
        names += [f"{before}{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    tails = expand_brackets(after)
    if len(names) * len(tails) > MOST_HOSTS:
        raise ValueError(f"more than {MOST_HOSTS} hosts")
    return [f"{name}{tail}" for name in names for tail in tails]


def _split(text: str) -> list[str]:
    """Splits at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            parts.append(text[start:position])
            start = position + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _read(descriptor: int) -> bytes:
    data = b""
    while len(data) <= _MOST_FILE_BYTES and (chunk := os.read(descriptor, 2**20)):
        data += chunk
    return data


PLACE_LABEL = "__neuron_place__"


def read_file_sd(path: str) -> HostList:
    """Reads a Prometheus file_sd file (JSON). Raises UserError if it cannot be read or is malformed."""
    at = f"--file-sd {excerpt(path, 200)}"
    text = read_host_file("--file-sd", path, "targets, as Prometheus reads them")
    try:
        groups = json.loads(text)
    except (ValueError, RecursionError) as error:
        yaml = path.endswith((".yml", ".yaml"))
        cause = "is YAML, which is not supported" if yaml else f"is not JSON: {excerpt(str(error), 100)}"
        raise UserError(f"{at}: {cause}; write it as JSON, which Prometheus reads too", EXIT_USAGE) from None
    if not isinstance(groups, list):
        raise UserError(f'{at}: is not a list; write [{{"targets": ["trn-1:8000"]}}]', EXIT_USAGE)
    collected = HostListBuilder()
    for number, group in enumerate(groups, 1):
        where = f"{excerpt(path, 200)}: group {number}"
        try:
            targets, labels = _group(group)
        except ValueError as error:
            collected.add_problem(where, str(error))
            continue
        for target in targets:
            host = target.rpartition(":")[0].strip("[]") or target
            name = labels.get("node", host) if len(targets) == 1 else host
            reached = labels.get(PLACE_LABEL, f"ssh:{host}")
            labels_text = " ".join(f"{key}={value}" for key, value in _shown(labels))
            collected.add(f"{name} {reached} {labels_text}", where)
    return collected.hosts()


def _group(group: Any) -> tuple[list[str], dict[str, str]]:
    """Returns the targets and the labels of a file_sd group. Raises ValueError if Prometheus would reject it."""
    if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
        raise ValueError("has no list of targets")
    targets, labels = group["targets"], group.get("labels") or {}
    if not isinstance(labels, dict) or not all(isinstance(each, str) for each in (*targets, *labels.values())):
        raise ValueError("has a target or a label that is not text")
    return targets, labels


def _shown(labels: dict[str, str]) -> list[tuple[str, str]]:
    """Returns the labels to show for a host: without `node` and Prometheus's own labels. Spaces become underscores."""
    own = [(name, "_".join(value.split())[:LONGEST_LABEL]) for name, value in labels.items()]
    return [(name, value) for name, value in own if not name.startswith("__") and name != "node"][:MOST_LABELS]
