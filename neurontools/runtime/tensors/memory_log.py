"""The file that goes with a refused allocation: what the HBM held, tensor by tensor.

The original writes /tmp/neuron_mem_table_device_<device>_hbm_<stack>.log beside its error; so do we, in TMPDIR.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from contextlib import suppress

from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.memory import Category, CoreMemory, log_stamp
from neurontools.util.directory import Directory

_MOST_LINES = 200


def write_memory_log(memory: CoreMemory, text: str) -> str | None:
    """Writes the file for a refusal with this text; its path, or None where it can't be written.

    The runtime's lock is held. The directory is everybody's: what another user put in the way is not written to.
    """
    name = f"neuron_mem_table_device_{memory.device_index}_hbm_{memory.hbm_index}.log"
    with suppress(OSError, ValueError):
        content = f"{log_stamp()} {os.getpid()}\n{text}\n\n" + "\n".join(_table(memory)) + "\n"
        with Directory.open(tempfile.gettempdir()) as directory:
            directory.replace(name, content.encode())
            return f"{directory.path}/{name}"
    return None


def _table(memory: CoreMemory) -> list[str]:
    """Tensors of the core, alike ones in one line, the most bytes first."""
    alike: Counter[tuple[str, str, int]] = Counter()
    for buffer in buffers.by_address.values():
        if buffer.core.memory is memory and buffer.value is not None:
            alike[(Category(buffer.category).name.lower(), buffer.layout.text(), buffer.layout.nbytes)] += 1
    lines = [f"{'BYTES':>16} {'COUNT':>7} {'CATEGORY':<10} TENSOR"]
    for (category, layout, nbytes), count in sorted(alike.items(), key=lambda item: -item[0][2] * item[1])[
        :_MOST_LINES
    ]:
        lines.append(f"{nbytes * count:>16} {count:>7} {category:<10} {layout}")
    if len(alike) > _MOST_LINES:
        lines.append(f"and {len(alike) - _MOST_LINES} more kinds of tensors")
    return lines
