"""shutil without bzip2 and LZMA, for long-lived programs that pack no archives.

shutil imports both where they are, and their libraries stay in memory. It works without, on a Python that was built so,
and so it does here. Who needs one of them later in the process can still import it.
"""

from __future__ import annotations

import sys
from typing import Any

_ARCHIVES = ("bz2", "lzma")


def import_shutil() -> None:
    """Import shutil; what of this was imported before stays."""
    modules: dict[str, Any] = sys.modules
    left_out = [name for name in _ARCHIVES if name not in modules]
    for name in left_out:
        modules[name] = None
    try:
        import shutil  # noqa: F401
    finally:
        for name in left_out:
            del modules[name]
