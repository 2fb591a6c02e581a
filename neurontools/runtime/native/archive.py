"""Machine code of a graph as bytes: for the cache, and on its way from the process that made it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from neurontools.runtime.native.segments import Segment

FORMAT = "neurontools-machine-code-1"
LARGEST_BYTES = 256 << 20
_DIGEST_LENGTH = 64
_OF_THE_PROCESSOR = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU part")


class InvalidArchive(ValueError):
    """These bytes are no machine code for here; the text says why."""


@cache
def _processor() -> str:
    """What of the processor the compiler looks at."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return "unknown"
    own = lines[: lines.index("") if "" in lines else None]  # the first of several that are alike
    return "\n".join(line for line in own if line.partition("\t")[0] in _OF_THE_PROCESSOR)


def machine_key(threads: int) -> str:
    """Eight bytes in hex for what machine code depends on besides its graph: torch, the processor, the threads."""
    text = "\n".join((FORMAT, torch.__version__, _processor(), str(threads)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Archive:
    """Shared objects of the segments of a graph.

    `fixed` are the numbers that are constants in it, by the index of the scalar. `refusal` is why there is none, "" if
    there is some.
    """

    module: str
    key: str
    segments: tuple[Segment, ...] = ()
    objects: tuple[bytes, ...] = ()
    fixed: tuple[tuple[int, float | int | bool], ...] = ()
    changing: tuple[int, ...] = ()
    refusal: str = ""

    def to_bytes(self) -> bytes:
        """The digest of the rest, a line of JSON, the objects."""
        head = {
            "module": self.module,
            "key": self.key,
            "segments": [[s.first, s.end, s.inputs, s.outputs, s.updated, s.fixed, s.changing] for s in self.segments],
            "sizes": [len(each) for each in self.objects],
            "fixed": [[index, value.hex() if isinstance(value, float) else value] for index, value in self.fixed],
            "changing": self.changing,
            "refusal": self.refusal,
        }
        content = json.dumps(head).encode() + b"\n" + b"".join(self.objects)
        return hashlib.sha256(content).hexdigest().encode() + content

    @classmethod
    def from_bytes(cls, data: bytes, module: str, key: str) -> Archive:
        """Reads what `to_bytes` wrote for this module and machine; InvalidArchive for anything else."""
        digest, content = data[:_DIGEST_LENGTH], data[_DIGEST_LENGTH:]
        if hashlib.sha256(content).hexdigest().encode() != digest:
            raise InvalidArchive("its digest does not match")
        line, _, rest = content.partition(b"\n")
        head = json.loads(line)
        if (head["module"], head["key"]) != (module, key):
            raise InvalidArchive("it is another graph's, or another machine's")
        objects = []
        for size in head["sizes"]:
            objects.append(rest[:size])
            rest = rest[size:]
        return cls(
            module,
            key,
            tuple(Segment(first, end, *map(tuple, lists)) for first, end, *lists in head["segments"]),
            tuple(objects),
            tuple((index, float.fromhex(v) if isinstance(v, str) else v) for index, v in head["fixed"]),
            tuple(head["changing"]),
            head["refusal"],
        )
