"""Channels by which ranks send each other tensors without knowing who is at the other end.

What is sent waits where the ranks meet, so that a sender never waits for a receiver. A channel carries its tensors in
order; the number of a channel and of the tensor in it are the key.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from neurontools.runtime.counting.step_clock import COLLECTIVE, step_clock
from neurontools.runtime.execution import ranks
from neurontools.runtime.tensors.core import Tensor

_sent: dict[int, int] = {}
_received: dict[int, int] = {}
_here: dict[str, bytes] = {}


def send(channel: int, value: Tensor) -> None:
    """Sends a CPU tensor."""
    number = _sent[channel] = _sent.get(channel, 0) + 1
    payload = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    store = ranks.meeting_place()
    if store is None:
        _here[_key(channel, number)] = payload
    else:
        store.set(_key(channel, number), payload)


def receive(channel: int, like: Tensor) -> Tensor:
    """Waits for the next tensor of a channel, which has the shape and type of `like`; a CPU tensor.

    RuntimeError where the job has one rank and nothing was sent; ValueError for a tensor of another size.
    """
    number = _received[channel] = _received.get(channel, 0) + 1
    key = _key(channel, number)
    store: Any = ranks.meeting_place()
    if store is not None:
        entry = step_clock.open(COLLECTIVE, time.perf_counter())
        try:
            payload = store.get(key)
        finally:
            step_clock.close(entry, time.perf_counter())
        store.delete_key(key)
    elif key in _here:
        payload = _here.pop(key)
    else:
        raise RuntimeError(f"recv: nothing was sent through channel {channel}, and this job has no other rank")
    if len(payload) != like.numel() * like.element_size():
        raise ValueError(
            f"recv: {len(payload)} bytes came through channel {channel} for a tensor of "
            f"{like.numel() * like.element_size()}; send and receive tensors of one shape and type"
        )
    flat = torch.frombuffer(bytearray(payload), dtype=like.dtype) if payload else torch.empty(0, dtype=like.dtype)
    return flat.reshape(like.shape)


def _key(channel: int, number: int) -> str:
    return f"neuron-channel-{channel}-{number}"
