"""HTTP servers of commands: the options --serve and --serve-config, and a server that runs until a signal arrives."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from neurontools.net.acceptor import listen_address
from neurontools.net.http_server import HttpLimits, HttpServer
from neurontools.net.http_site import (
    HostCheck,
    HttpAccess,
    HttpPage,
    RequestGuard,
    Site,
    require_auth_off_loopback,
)
from neurontools.net.tls import ServerFiles, ServerTls
from neurontools.util.command_lifecycle import write_stderr
from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError
from neurontools.util.formats import read_options
from neurontools.util.signals import DeferredSignals
from neurontools.web.privacy_filter import PrivacyFilter, shows_by_default

_RENEWAL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of the file of --serve-config: access to the pages, and what viewers see."""

    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    tls_client_crl: str | None = None
    bearer_token_file: str | None = None
    hosts: tuple[str, ...] = ()
    show_commands: bool = False
    show_users: bool = False

    def access(self) -> HttpAccess:
        """Returns the rules for access to the server. Raises UserError if a file is invalid."""
        tls = None
        if self.tls_certificate is not None:
            files = ServerFiles(self.tls_certificate, self.tls_key, self.tls_client_ca, self.tls_client_crl)
            tls = ServerTls(files, "--serve-config: tls_")
        elif self.tls_key is not None or self.tls_client_ca is not None:
            raise UserError("--serve-config: tls_key and tls_client_ca need tls_certificate", EXIT_USAGE)
        if self.tls_client_crl is not None and self.tls_client_ca is None:
            raise UserError("--serve-config: tls_client_crl needs tls_client_ca", EXIT_USAGE)
        return HttpAccess(tls, bearer_token_file=self.bearer_token_file, message_prefix="--serve-config: ")

    @property
    def hiding(self) -> PrivacyFilter:
        """The filter of what readers may see."""
        return PrivacyFilter(self.show_commands, self.show_users)


def serve_settings(given: Mapping[str, str], *, is_shown: Callable[[Mapping[str, Any]], bool]) -> ServeSettings:
    """Reads the file of --serve-config. `is_shown` says whether commands and users are shown if the file is silent."""
    options: dict[str, Any] = {}
    if "serve-config" in given:
        usual = {field.name: field.default for field in fields(ServeSettings)}
        options = read_options("--serve-config", given["serve-config"], usual)
    shown = is_shown(options)
    return ServeSettings(**{"show_commands": shown, "show_users": shown, **options})


@dataclass(frozen=True, slots=True)
class Listening:
    """The checked options --serve and --serve-config of a command."""

    command: str
    address_text: str
    address: tuple[str | None, int]
    settings: ServeSettings
    access: HttpAccess

    @classmethod
    def from_options(cls, command: str, given: Mapping[str, str]) -> Listening:
        """Raises UserError for an invalid address or file, or if others could reach the address without a key."""
        try:
            host, port = listen_address(given["serve"])
        except ValueError as error:
            raise UserError(f"--serve: {error}", EXIT_USAGE) from None
        settings = serve_settings(given, is_shown=lambda options: shows_by_default(host, options.get("hosts")))
        access = settings.access()
        require_auth_off_loopback(
            host, access, "--serve", "tls_certificate in --serve-config", "bearer_token_file or tls_client_ca"
        )
        return cls(command, given["serve"], (host, port), settings, access)

    async def serve(
        self,
        pages: Mapping[str, HttpPage],
        otherwise: HttpPage,
        path: str,
        stop: SignalFuture,
        limits: HttpLimits | None = None,
    ) -> int:
        """Serves pages until a signal arrives, and returns its number. The message at the start names `path`."""
        site = Site(pages, otherwise, self.access, RequestGuard(HostCheck(self.settings.hosts)))
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        server = HttpServer(site, name="pages", limits=(limits or HttpLimits()).with_files(most_files))
        host = self.address[0]
        try:
            bound = await server.listen(*self.address)
        except OSError as error:
            problem = f"--serve {self.address_text}: {error.strerror or error}"
            raise UserError(f"{problem}; give another address", EXIT_FAILURE) from None
        try:
            shown = f"[{host}]" if host and ":" in host else host or "this-host"
            scheme = "http" if self.access.context is None else "https"
            write_stderr(f"{self.command}: serving at {scheme}://{shown}:{bound}{path}")
            while not stop.future.done():
                await asyncio.wait([stop.future], timeout=_RENEWAL_SECONDS)
                if self.access.reload():
                    server.disconnect_clients()
        finally:
            server.close()
        return stop.future.result()


class SignalFuture:
    """The number of the first signal, as a future of the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[int] = self._loop.create_future()

    def set(self, number: int) -> None:
        """Sets the result of the future. Thread-safe."""
        self.call_soon(self._set, number)

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function in the event loop. Thread-safe. Does nothing once the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def _set(self, number: int) -> None:
        if not self.future.done():
            self.future.set_result(number)


def run_until_signal(serve: Callable[[SignalFuture], Awaitable[int]]) -> int:
    """Runs an asynchronous server, which gets the future of a signal. Returns the result of the server."""

    async def run(endings: DeferredSignals) -> int:
        stop = SignalFuture()
        endings.on_signal(stop.set)
        return await serve(stop)

    with DeferredSignals() as endings:
        return asyncio.run(run(endings))
