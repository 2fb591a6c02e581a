"""What a fork does to reporters: the child has none of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import RLock

switch_off: set[Callable[[], None]] = set()
"""What a forked child calls: for each open reporter, what switches it off."""
fork_lock = RLock()
"""Held while a link gets its descriptor, so that no child has one its reporter does not know of; never during I/O."""


def _after_fork_in_child() -> None:
    fork_lock.release()
    for switch in tuple(switch_off):
        switch()
    switch_off.clear()


os.register_at_fork(before=fork_lock.acquire, after_in_parent=fork_lock.release, after_in_child=_after_fork_in_child)
