"""What the tests of the small client share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.grpc_server import Handlers, ServeGrpc, started
from tests.harness.raw_server import RawServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RawServer]:
    """A server that says what the test has it say."""
    raw = RawServer(str(tmp_path / "s.sock"))
    yield raw
    raw.close()


@pytest.fixture(scope="module")
def serve_grpc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeGrpc]:
    """Starts grpcio servers that end with the module."""
    with ExitStack() as stack:

        def serve(handlers: Handlers) -> str:
            path = str(tmp_path_factory.mktemp("grpc") / "s.sock")
            server = started(path, handlers)
            stack.callback(lambda: server.stop(None).wait())
            return path

        yield serve
