"""A real neurond whose API is on the network too, and readers with real certificates."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from neurontools.rpc import neuron_pb2_grpc
from tests.harness.certificates import Authority
from tests.harness.hostile_peer import frame, request
from tests.harness.json_lines import audit_entries
from tests.harness.running_daemon import RunningDaemon
from tests.harness.waiting import HANG_SECONDS

ADMIN, VIEWER = "spiffe://example.org/admin", "viewer.example.org"
_SETTINGS, _ACK = 4, 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(_SETTINGS, 0, 0)
_ACKNOWLEDGED = frame(_SETTINGS, _ACK, 0)  # without it, grpcio ends the connection after a minute

Files = tuple[Path, Path]


class NetworkDaemon:
    """`daemon` lets in ADMIN as full and VIEWER as summary; `port` is where."""

    def __init__(
        self,
        start_daemon: Callable[..., RunningDaemon],
        directory: Path,
        *flags: str,
        host: str = "127.0.0.1",
        port: int = 0,
        viewers: str = VIEWER,
    ) -> None:
        self._signed: dict[str, Files] = {}
        self.authority = Authority(directory)
        self.crl = self.authority.write_crl()
        self.server = self.authority.sign("server", "DNS:localhost", "IP:::1")
        self.state = directory / "state"
        self.state.mkdir(0o700)
        self._host = host.strip("[]")
        self._configuration = directory / "neurond.toml"
        self.write(viewers)
        flags = flags or ("--simulate", "trn1.2xlarge", "--interval", "0.05")
        self.daemon = start_daemon(
            *(*flags, "--listen", f"{host}:{port}", "--config", str(self._configuration)),
            *("--state-directory", str(self.state)),
        )
        found = re.search(r"grpcs://\S+:(\d+)", self.daemon.log)
        assert found is not None, self.daemon.log
        self.port = int(found[1])

    def write(self, viewers: str = VIEWER) -> None:
        certificate, key = self.server
        self._configuration.write_text(
            f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\nclient_ca = "{self.authority.file}"\n'
            f'client_crl = "{self.crl}"\n'
            f'full = ["{ADMIN}"]\nsummary = ["{viewers}"]\n',
            "utf-8",
        )

    def admin(self) -> Files:
        return self._files("admin", f"URI:{ADMIN}")

    def viewer(self) -> Files:
        return self._files("viewer", f"DNS:{VIEWER}")

    def _files(self, name: str, subject: str) -> Files:
        if name not in self._signed:
            self._signed[name] = self.authority.sign(name, subject)
        return self._signed[name]

    @contextmanager
    def calls(self, files: Files) -> Iterator[tuple[neuron_pb2_grpc.MonitorServiceStub, grpc.Channel]]:
        """The API as a client of grpcio's has it."""
        certificate, key = files
        credentials = grpc.ssl_channel_credentials(
            self.authority.file.read_bytes(), key.read_bytes(), certificate.read_bytes()
        )
        host = f"[{self._host}]" if ":" in self._host else self._host
        with grpc.secure_channel(f"{host}:{self.port}", credentials) as channel:
            yield neuron_pb2_grpc.MonitorServiceStub(channel), channel

    def context(self, files: Files | None) -> ssl.SSLContext:
        """What a reader trusts, and shows."""
        context = ssl.create_default_context(cafile=str(self.authority.file))
        context.set_alpn_protocols(["h2"])
        if files is not None:
            context.load_cert_chain(*files)
        return context

    def tcp(self, address: str = "127.0.0.1") -> socket.socket:
        """A connection from an address of this host: all of 127.0.0.0/8 are."""
        return socket.create_connection((self._host, self.port), HANG_SECONDS, source_address=(address, 0))

    def connect(self, context: ssl.SSLContext, address: str = "127.0.0.1") -> ssl.SSLSocket:
        """A connection behind its handshake; SSLError or OSError when that fails."""
        return context.wrap_socket(self.tcp(address), server_hostname=self._host)

    def watch(self, context: ssl.SSLContext, address: str = "127.0.0.1") -> ssl.SSLSocket:
        """A connection that has asked for summaries."""
        connection = self.connect(context, address)
        connection.sendall(_PREFACE + request(1, "WatchHostSummary"))
        return connection

    def refusals(self) -> list[dict[str, Any]]:
        """Returns the entries of the audit log about refused connections."""
        return audit_entries(self.state, "network_refused")


def summaries(connection: ssl.SSLSocket, count: int) -> None:
    """Reads until so many summaries have come, the server's settings before them when it is the first time."""
    data = b""
    while data.count(b"trn1.2xlarge") < count:
        chunk = connection.recv(2**14)
        assert chunk, data[-200:]
        if not data and chunk[3] == _SETTINGS and chunk[4] != _ACK and chunk[5:9] == bytes(4):
            connection.sendall(_ACKNOWLEDGED)
        data += chunk


def received_until_close(connection: socket.socket) -> bytes:
    """All that is sent until the other end closes."""
    data = b""
    try:
        while chunk := connection.recv(2**14):
            data += chunk
    except ConnectionError:
        pass
    return data
