"""What leaves this host in a report: without commands, users, addresses, and the names by which both are known.

Each name becomes a word of its own, the same wherever it stands, so that a report still tells who is who.
"""

from __future__ import annotations

import getpass
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from neurontools.model import EndedProcess, Process, Snapshot

COMMAND = "<command>"
_SHORTEST = 3  # shorter names stand by chance in other words
_MOST_WORDS = 5000
_PLAIN = frozenset({"root", "nobody", "localhost", "default", "python", "python3", "neurond", "neuron"})
# Fields of a snapshot whose value is a name, and what that is called.
_NAMES = {
    "user": "user",
    "tag": "tag",
    "pod_name": "pod",
    "pod_namespace": "namespace",
    "pod_uid": "pod-uid",
    "container_id": "container",
    "container_name": "container-name",
    "instance_id": "instance",
    "instance_name": "instance-name",
    "subnet_id": "subnet",
    "ami_id": "image",
    "job": "job",
    "name": "name",
}
_GONE = ("uid",)
_ADDRESS = re.compile(
    r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\w)|(?<![\w.:-])[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+(?![\w:-])"
)
_VERSION_BEFORE = re.compile(r"version[:= ]*$|[<>=]=$", re.IGNORECASE)
_FORMS = (
    (re.compile(r"\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b"), "<mac>"),
    (re.compile(r"\barn:aws[\w-]*:\S+"), "<arn>"),
    (re.compile(r"\b(?:i|eni|subnet|vpc|ami|vol|sg)-[0-9a-f]{8,17}\b"), "<aws-id>"),
    (re.compile(r"\bip-\d{1,3}(?:-\d{1,3}){3}(?:\.[\w.-]+)?"), "<host>"),
    (re.compile(r"(?<=://)[^\s/@]+@"), "<login>@"),
    (re.compile(r"(?<![\w.+<>-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<mail>"),
    (re.compile(r"(?<=/home/)[^\s/:'\"]+"), "<user>"),
)


class Redactor:
    """Knows the names that are to be hidden; `text` and `value` give what may be shown."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._pattern: re.Pattern[str] | None = None
        self._versions: set[str] = set()
        host = socket.gethostname()
        for name in (host, host.partition(".")[0], socket.getfqdn() if "." in host else host):
            self.hide(name, "host")
        for name in _own_names():
            self.hide(name, "user")

    def hide(self, word: str, kind: str) -> str:
        """The word that stands for this one from now on; the word itself where it tells nothing."""
        if word in _PLAIN or not word or word.isdigit():
            return word
        if word not in self._words:
            if len(self._words) >= _MOST_WORDS:
                return f"<{kind}>"
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._words[word] = f"<{kind}-{self._counts[kind]}>"
            self._pattern = None
        return self._words[word]

    def keep(self, version: str | None) -> None:
        """This is a version, and no address, though it may look like one."""
        self._versions.add(version or "")

    def learn(self, snapshot: Snapshot) -> None:
        """Learns all names in a snapshot, and its versions."""
        self.keep(snapshot.instance.driver_version)
        for process in snapshot.processes:
            self.keep(process.runtime_version)
        everybody: tuple[Process | EndedProcess, ...] = (*snapshot.processes, *snapshot.ended)
        for one in everybody:
            self.hide(one.user or "", "user")
            if one.tag != str(one.pid):
                self.hide(one.tag, "tag")
            if len(one.command) >= _SHORTEST:
                self._words.setdefault(one.command, COMMAND)
        for allocation in snapshot.pod_allocations:
            self.hide(allocation.pod_name, "pod")
            self.hide(allocation.pod_namespace, "namespace")
        self._pattern = None

    def text(self, text: str) -> str:
        """Any text without what is known to be a name, and without what looks like an address."""
        if self._pattern is None:
            words = sorted((word for word in self._words if len(word) >= _SHORTEST), key=len, reverse=True)
            alternatives = "|".join(map(re.escape, words)) or r"(?!)"
            self._pattern = re.compile(rf"(?<![\w-])(?:{alternatives})(?![\w-])")
        text = self._pattern.sub(lambda match: self._words[match[0]], text)
        for form, word in _FORMS:
            text = form.sub(word, text)
        return _ADDRESS.sub(lambda match: self._without_address(text, match), text)

    def _without_address(self, text: str, match: re.Match[str]) -> str:
        """<address> where it is one; a version of four numbers looks alike and stays, as loopback does."""
        found = match[0]
        bare = found.rstrip(":.")
        if bare in self._versions or _VERSION_BEFORE.search(text[: match.start()]):
            return found
        try:
            address = ipaddress.ip_address(bare)
        except ValueError:
            return found
        return found if address.is_loopback or address.is_unspecified else "<address>" + found[len(bare) :]

    def value(self, value: Any, key: str = "") -> Any:
        """A document of plain values: fields that hold names by what they are, all others as text."""
        if isinstance(value, Mapping):
            return {name: self.value(part, name) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(part, key) for part in value]
        if key in _GONE:
            return None
        if not isinstance(value, str):
            return value
        if key.endswith("version"):
            return value
        if key == "command":
            return COMMAND if value else value
        if key in _NAMES:
            return self.text(self.hide(value, _NAMES[key]))
        return self.text(value)


def _own_names() -> Iterable[str]:
    try:
        yield getpass.getuser()
        yield Path.home().name
    except (OSError, KeyError, RuntimeError):  # a user without a name
        return
