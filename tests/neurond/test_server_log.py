"""What grpcio logs when the daemon ends while calls are under way."""

from __future__ import annotations

import asyncio
import logging

import grpc
import pytest
from neurond.service.server import _is_told


@pytest.mark.parametrize(
    ("error", "is_told"), [(asyncio.CancelledError(), False), (grpc.aio.InternalError(), False), (ValueError(), True)]
)
def test_only_calls_whose_client_left_are_not_told(error: BaseException, is_told: bool) -> None:
    text = "Exception not handled by _handle_exceptions in servicer method"
    record = logging.LogRecord("grpc", logging.ERROR, __file__, 1, text, None, (type(error), error, None))
    assert _is_told(record) is is_told
