"""Makes a long reading leave the interpreter to the event loop, again and again."""

from __future__ import annotations

import threading
import time

_WORK_SECONDS = 0.0005
_REST_SECONDS = 0.0002


class Pacing:
    """Belongs to a thread that reads; to be told of each small step of its work.

    A thread that waits for the interpreter gets it only after the switch interval, and anew for every system call it
    makes. So one that answers a request while another thread works without a rest waits many times over.
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def step(self) -> None:
        """Rests when the work since the latest rest was long enough; not in the main thread, which waits for itself."""
        if time.perf_counter() - self._since >= _WORK_SECONDS:
            if threading.get_ident() != threading.main_thread().ident:
                time.sleep(_REST_SECONDS)
            self._since = time.perf_counter()
