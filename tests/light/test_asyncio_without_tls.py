"""Programs that never speak TLS don't carry OpenSSL; asyncio is whole but for it, and ssl can still be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

AFTERWARDS = """
import sys
from neurontools.light.asyncio_without_tls import import_asyncio

import_asyncio()
loaded = "ssl" in sys.modules
import asyncio, ssl

async def run():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    server.close()

asyncio.run(run())
ssl.create_default_context()
print(loaded)
"""


def test_asyncio_works_and_ssl_can_be_imported_later() -> None:
    done = subprocess.run([sys.executable, "-c", AFTERWARDS], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_what_was_imported_before_stays_whole() -> None:
    script = (
        "import ssl; from neurontools.light.asyncio_without_tls import import_asyncio; import_asyncio();"
        "import asyncio.base_events; assert asyncio.base_events.ssl is ssl; assert __import__('ssl') is ssl"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_daemon_without_a_listener_has_no_openssl(socket_directory: Path) -> None:
    ready, is_ready = os.pipe()
    flags = ("--simulate", "trn1.2xlarge", "--socket", str(socket_directory / "s"), "--ready-fd", str(is_ready))
    with subprocess.Popen([sys.executable, "-m", "neurond", *flags], pass_fds=(is_ready,)) as daemon:
        os.close(is_ready)
        try:
            with os.fdopen(ready, "rb") as told:
                assert told.readline() == b"ready\n"
            assert "libssl" not in Path(f"/proc/{daemon.pid}/maps").read_text()
        finally:
            daemon.terminate()
