"""What grpcio logs when the daemon ends while calls are under way."""

from __future__ import annotations

import asyncio
import logging

import pytest
from neurond.service.server import _is_no_cancellation


@pytest.mark.parametrize(("error", "is_told"), [(asyncio.CancelledError(), False), (ValueError(), True)])
def test_only_cancellations_are_not_told(error: BaseException, is_told: bool) -> None:
    text = "Exception not handled by _handle_exceptions in servicer method"
    record = logging.LogRecord("grpc", logging.ERROR, __file__, 1, text, None, (type(error), error, None))
    assert _is_no_cancellation(record) is is_told
