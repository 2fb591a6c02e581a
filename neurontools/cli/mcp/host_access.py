"""Reads hosts, daemons and files for the tools of neuron-mcp. Hides what the reader may not see."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from neurontools.cli.daemon.fleet import open_direct_feed, open_fleet_feed, requested_hosts
from neurontools.client.daemon_client import Client, connect
from neurontools.fleet.document import FleetDocument, document
from neurontools.fleet.feed import DirectFeed, FleetFeed
from neurontools.fleet.hosts import HostAddress, Reach
from neurontools.fleet.states import HostLink, worst_first
from neurontools.model import Snapshot
from neurontools.util.directory import Directory
from neurontools.util.errors import EXIT_NO_DAEMON, EXIT_NOT_FOUND, EXIT_PERMISSION, EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt
from neurontools.web.privacy_filter import PrivacyFilter

_DEEPEST = 16  # directories between --directory and a file
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class HostAccess:
    """What the tools may read: the hosts of the options, and the files below one directory.

    `socket_path` is the daemon's socket; None finds the daemon at each call. `fleet` has the options that name many
    hosts; empty for one host. Thread-safe.
    """

    socket_path: str | None
    fleet: Mapping[str, str]
    directory: str | None
    hiding: PrivacyFilter

    @contextmanager
    def client(self, host: str | None) -> Iterator[Client]:
        """Connects to the daemon of a host; None is this host. Raises UserError if it cannot be reached."""
        with ExitStack() as stack:
            path = self.socket_path if host is None and not self.fleet else self._path_of(host, stack)
            yield stack.enter_context(connect(path))

    def snapshot(self, host: str | None) -> Snapshot:
        """Returns the latest snapshot of a host, without what the reader may not see."""
        with self.client(host) as client:
            return self.hiding.snapshot(client.snapshot())

    def fleet_document(self) -> FleetDocument:
        """Returns the document of all hosts, the worst first, as `neuron-top --hosts LIST --json` prints it."""
        with ExitStack() as stack:
            feed: FleetFeed
            problems: tuple[str, ...] = ()
            if self.fleet:
                feed, problems = open_fleet_feed(self.fleet)
            else:
                client = stack.enter_context(self.client(None))
                feed = DirectFeed([HostAddress("localhost", Reach.SOCKET, client.socket_path)])
            stack.enter_context(feed)
            if self.hiding.shows_users:
                feed.request_users()
            feed.start()
            feed.wait_settled()
            states = worst_first(self.hiding.hosts(feed.states))
            jobs = self.hiding.jobs(feed.jobs)
            notes = (*problems, *feed.notes)
            return document(states, time.monotonic(), time.time(), notes, jobs=jobs, models=feed.models)

    @contextmanager
    def open_path(self, path: str) -> Iterator[tuple[int, str]]:
        """Opens the directory of a path below --directory. Yields its descriptor and the last name of the path.

        Follows no link. Raises UserError for a path outside.
        """
        if self.directory is None:
            raise UserError("no files are readable here; start neuron-mcp with --directory DIR", EXIT_USAGE)
        *above, name = path.split("/")
        if not path or "\0" in path or len(above) > _DEEPEST or any(part in ("", ".", "..") for part in (*above, name)):
            raise UserError(
                f"{excerpt(path, _SHOWN_CHARACTERS)}: not a path below --directory; give one such as runs/prof",
                EXIT_USAGE,
            )
        try:
            with ExitStack() as stack:
                directory = stack.enter_context(Directory.open(self.directory))
                for part in above:
                    directory = stack.enter_context(directory.open_subdirectory(part))
                yield directory.descriptor, name
        except PermissionError as error:
            raise UserError(f"{_shown(path)}: {error.strerror}; choose another file", EXIT_PERMISSION) from error
        except OSError as error:
            raise UserError(f"{_shown(path)}: {error.strerror}; choose another file", EXIT_NOT_FOUND) from error

    def read_file(self, path: str, most_bytes: int) -> bytes:
        """Returns the content of a file below --directory. Raises UserError if it is larger than `most_bytes`."""
        with self.open_path(path) as (above, name):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise UserError(f"{_shown(path)}: no regular file; choose another", EXIT_USAGE)
                data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise UserError(f"{_shown(path)}: larger than {most_bytes >> 20} MiB; choose another file", EXIT_USAGE)
        return data

    def _path_of(self, host: str | None, stack: ExitStack) -> str:
        """Returns a socket that leads to the daemon of a host, for as long as `stack` is open."""
        if not self.fleet:
            raise UserError("this server shows one host; leave host out", EXIT_USAGE)
        if "prometheus" in self.fleet:
            raise UserError(
                "Prometheus has only summaries of hosts; use list_hosts or list_jobs without host, or start "
                "neuron-mcp with --hosts",
                EXIT_USAGE,
            )
        if host is None:
            raise UserError("give host; list_hosts has the names", EXIT_USAGE)
        found = [place for place in requested_hosts(self.fleet).places if place.name == host]
        if not found:
            raise UserError(f"no host {_shown(host)}; list_hosts has the names", EXIT_NOT_FOUND)
        if found[0].reach is Reach.SOCKET:
            return found[0].address
        feed = stack.enter_context(open_direct_feed(found, self.fleet))
        feed.start()
        feed.wait_settled()
        path = feed.socket_path(host)
        if path is None or feed.states[0].link is not HostLink.LIVE:
            raise UserError(f"{_shown(host)}: {feed.states[0].loss_reason or 'no answer in time'}", EXIT_NO_DAEMON)
        return path


def _shown(text: str) -> str:
    return excerpt(text, _SHOWN_CHARACTERS)
