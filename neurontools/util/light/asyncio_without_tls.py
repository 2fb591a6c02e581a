"""asyncio without TLS, for long-lived programs that never speak it.

asyncio imports ssl where there is one, and OpenSSL stays in memory with it: 4 MiB, a tenth of a monitor. It works
without, on a Python that was built so, and so it does here. Who needs TLS later in the process can still import ssl,
but asyncio won't offer it any more.
"""

from __future__ import annotations

import sys
from typing import Any


def import_asyncio() -> None:
    """Import asyncio; nothing is left out when it or ssl was imported before."""
    modules: dict[str, Any] = sys.modules
    if "ssl" in modules:
        return
    modules["ssl"] = None
    try:
        import asyncio  # noqa: F401
    finally:
        del modules["ssl"]
