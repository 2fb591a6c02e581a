"""Ctrl-C ends a training, whatever the runtime is doing when it comes."""

from __future__ import annotations

import ctypes
import signal
from collections import deque
from functools import partial
from operator import methodcaller
from typing import Any

import pytest
import torch


def test_an_interrupt_that_comes_while_storage_dies_is_raised(xla: Any) -> None:
    """All in one call of C: the signal comes, then tensors die, and only then Python looks for signals again."""
    tensors = [torch.ones(2).to("xla") for _ in range(3)]
    interrupt = partial(ctypes.CDLL(None)["raise"], signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        deque(map(methodcaller("__call__"), [interrupt, tensors.clear]), maxlen=0)
    assert not tensors
