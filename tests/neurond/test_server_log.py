"""What grpcio logs when the daemon ends while calls are under way."""

from __future__ import annotations

import asyncio
import logging

import grpc
import pytest
from google.protobuf.message import DecodeError
from neurond.service.handlers import _is_told


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (asyncio.CancelledError(), False),
        (grpc.aio.InternalError(), False),
        (DecodeError(), False),
        (ValueError(), True),
    ],
)
def test_what_a_client_alone_is_to_blame_for_is_not_told(error: BaseException, is_told: bool) -> None:
    text = "Exception not handled by _handle_exceptions in servicer method"
    record = logging.LogRecord("grpc", logging.ERROR, __file__, 1, text, None, (type(error), error, None))
    assert _is_told(record) is is_told
