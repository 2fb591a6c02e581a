"""Programs that pack no archives don't carry what compresses them; it can still be had."""

from __future__ import annotations

import subprocess
import sys

AFTERWARDS = """
import sys
before = set(sys.modules)
from neurontools.light.shutil_without_archives import import_shutil

import_shutil()
print({"bz2", "lzma"} & set(sys.modules) - before)
import bz2, lzma, shutil
assert bz2.decompress(bz2.compress(b"a")) == lzma.decompress(lzma.compress(b"a")) == b"a"
assert shutil.which("sh")
"""


def test_shutil_works_and_the_others_can_be_imported_later() -> None:
    done = subprocess.run([sys.executable, "-c", AFTERWARDS], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_what_was_imported_before_stays() -> None:
    script = (
        "import bz2; from neurontools.light.shutil_without_archives import import_shutil; import_shutil();"
        "import sys; assert sys.modules['bz2'] is bz2"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
