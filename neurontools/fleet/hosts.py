"""Which hosts are looked at, and where each is reached: `--hosts` and hostfiles.

A hostfile has a host a line: a name, and where to reach it if that isn't SSH to the name: `unix:/path` of a daemon's
socket, `ssh:destination`, or `grpcs://host:port` where a daemon serves over TLS; behind that labels, as `rack=a1`.
`trn[1-4,7]` stands for five hosts, as in Slurm. What is wrong with a line is told, and the other lines count.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from neurontools.rpc.remote_address import SCHEME, remote_address
from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt

MOST_HOSTS = 10_000
_MOST_FILE_BYTES = 4 * 2**20
_MOST_TROUBLES = 20
_LONGEST_NAME = 253
_NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:@%+-]*")  # never a dash first, which ssh would take for an option
_LABEL = re.compile(r"(?:^|\s)([A-Za-z_][A-Za-z0-9_]{0,63})=(\S*)$")
MOST_LABELS, LONGEST_LABEL = 16, 128
_BRACKETS = re.compile(r"([^\[\]]*)\[([^\[\]]*)\](.*)")


class Reach(StrEnum):
    """How a host is reached."""

    SOCKET = "unix"
    SSH = "ssh"
    TLS = "grpcs"


_TLS = f"{Reach.TLS}:"


@dataclass(frozen=True, slots=True)
class Place:
    """A host: its name in the view, and where its daemon is."""

    name: str
    reach: Reach
    address: str  # the path of a socket, what ssh is given, or //host:port
    labels: tuple[tuple[str, str], ...] = ()  # what it is grouped by: names and values

    @property
    def text(self) -> str:
        """As in a hostfile."""
        return f"{self.reach}:{self.address}"


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts, each name once, in the order they were named, and what was wrong with the rest, in lines."""

    places: tuple[Place, ...]
    troubles: tuple[str, ...] = ()


def hostfile_text(places: Iterable[Place]) -> str:
    """The hostfile of these hosts."""
    return "".join(
        " ".join((place.name, place.text, *(f"{name}={value}" for name, value in place.labels))) + "\n"
        for place in places
    )


def read_hostfile(path: str) -> Hosts:
    """The hosts of a file; UserError when it can't be read or is too large to be meant."""
    collected = Collected()
    for number, line in enumerate(file_text("--hostfile", path, "a host a line").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if text:
            collected.add(text, f"{excerpt(path, 200)}:{number}")
    return collected.hosts()


def file_text(flag: str, path: str, content: str) -> str:
    """What is in a file that names hosts; UserError when it can't be read or is too large to be meant."""
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


def named_hosts(text: str) -> Hosts:
    """The hosts of `--hosts`: names or places with commas between them; UserError when none of them can be meant."""
    collected = Collected()
    for part in _split(text):
        collected.add(part, "--hosts")
    hosts = collected.hosts()
    if not hosts.places:
        trouble = hosts.troubles[0] if hosts.troubles else "--hosts: names no host"
        raise UserError(f"{trouble}; give names with commas between them, such as trn-1,trn-2", EXIT_USAGE)
    return hosts


class Collected:
    """Hosts as they are named, each once."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._troubles: list[str] = []
        self._untold = 0

    def add(self, text: str, at: str) -> None:
        """Take what one line or one part names; what is wrong with it becomes a trouble."""
        try:
            for place in _places(text):
                if len(self._places) >= MOST_HOSTS:
                    raise ValueError(f"more than {MOST_HOSTS} hosts; the rest is left out")
                if place.name in self._places:
                    raise ValueError(f"{place.name} is named twice; the first counts")
                self._places[place.name] = place
        except ValueError as error:
            self.trouble(at, str(error))

    def trouble(self, at: str, cause: str) -> None:
        """Tell what is wrong with a part, as far as there is room."""
        if len(self._troubles) < _MOST_TROUBLES:
            self._troubles.append(f"{at}: {cause}")
        else:
            self._untold += 1

    def hosts(self) -> Hosts:
        """All of them."""
        more = (f"and {self._untold} more lines are wrong",) if self._untold else ()
        return Hosts(tuple(self._places.values()), (*self._troubles, *more))


def _places(text: str) -> list[Place]:
    """The hosts of one line; ValueError says why it is none."""
    name, _, where = text.partition(" ")
    where, labels = _labels_of(where.strip())
    if not where and name.startswith(_TLS):
        return [_over_tls(None, address, labels) for address in _expanded_addresses(name)]
    if not where and ":" in name and name.partition(":")[0] in tuple(Reach):
        where = name
        name = _name_of(where)
    names = expanded(name)
    for found in names:
        if not _NAME.fullmatch(found) or len(found) > _LONGEST_NAME:
            raise ValueError(f"{excerpt(found, 60)!r} is no name of a host")
    if not where:
        return [Place(found, Reach.SSH, found, labels) for found in names]
    if where.startswith(_TLS):
        if len(names) > 1:
            raise ValueError("several names can't have one place; give each a line of its own")
        return [_over_tls(names[0], where, labels)]
    kind, colon, address = where.partition(":")
    if not colon or kind not in tuple(Reach):
        raise ValueError(f"{excerpt(where, 60)!r} is no place; write unix:/path, ssh:destination or grpcs://host:port")
    if len(names) > 1:
        raise ValueError("several names can't have one place; give each a line of its own")
    reach = Reach(kind)
    if reach is Reach.SSH and not _NAME.fullmatch(address):
        raise ValueError(f"{excerpt(address, 60)!r} is nothing that ssh could be given")
    if reach is Reach.SOCKET and (not address.startswith("/") or "\0" in address):
        raise ValueError("the path of a socket begins with a slash")
    return [Place(names[0], reach, address, labels)]


def _labels_of(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """What stands before the labels at the end of a line, and these."""
    labels: list[tuple[str, str]] = []
    while found := _LABEL.search(text):
        if len(labels) >= MOST_LABELS:
            raise ValueError(f"more than {MOST_LABELS} labels")
        labels.insert(0, (found[1], excerpt(found[2], LONGEST_LABEL)))
        text = text[: found.start()].rstrip()
    return text, tuple(labels)


def _expanded_addresses(text: str) -> list[str]:
    """The addresses of `grpcs://trn[1-4]:8001`; brackets around an IPv6 address stand for nothing else."""
    return [text] if text.startswith(f"{SCHEME}[") and text.partition("]")[0].count(":") > 1 else expanded(text)


def _over_tls(name: str | None, where: str, labels: tuple[tuple[str, str], ...]) -> Place:
    address = remote_address(where)
    return Place(address.host if name is None else name, Reach.TLS, address.text.removeprefix(_TLS), labels)


def _name_of(where: str) -> str:
    """The name of a host of which only the place is given."""
    kind, _, address = where.partition(":")
    return address if kind == Reach.SSH else address.rpartition("/")[2].removesuffix(".sock")


def expanded(text: str) -> list[str]:
    """The names that a list as Slurm writes it stands for: `trn[01-03,7]`; ValueError for a wrong one."""
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
            raise ValueError(f"{excerpt(part, 60)!r} is no range of numbers")
        names += [f"{before}{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    tails = expanded(after)
    if len(names) * len(tails) > MOST_HOSTS:
        raise ValueError(f"more than {MOST_HOSTS} hosts")
    return [f"{name}{tail}" for name in names for tail in tails]


def _split(text: str) -> list[str]:
    """The parts between commas, those in brackets left alone."""
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
