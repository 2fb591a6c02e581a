"""Turns what is noted into the chunks of a profile, for whatever takes them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from neurontools.profile import chunks
from neurontools.profile.definitions import Graph, Operator, Place
from neurontools.profile.metadata import Metadata, State


@dataclass(slots=True)
class Definitions:
    """New definitions, to be added to those that were written."""

    names: list[str] = field(default_factory=list)
    stacks: list[tuple[Place, ...]] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.names or self.stacks or self.graphs or self.operators)


class ProfileEncoder:
    """Makes the chunks of one profile, for one thread at a time; where they go is for `_chunk` of who inherits.

    Methods raise what `_chunk` does. `dropped` are the rows, by table, that were let go of.
    """

    def __init__(self, metadata: Metadata) -> None:
        self.header = b"%s %d %s\n" % (chunks.MAGIC, chunks.VERSION, json.dumps(asdict(metadata)).encode())
        self.dropped: dict[str, int] = {}
        self._places: dict[Place, int] = {}

    def define(self, new: Definitions) -> None:
        """Adds definitions; what refers to them is written later."""
        if not new:
            return
        places: list[Place] = []
        stacks = [[self._number(place, places) for place in stack] for stack in new.stacks]
        document = {
            "names": new.names,
            "places": list(map(chunks.json_ready, places)),
            "stacks": stacks,
            "graphs": list(map(chunks.json_ready, new.graphs)),
            "operators": list(map(chunks.json_ready, new.operators)),
        }
        self._chunk(chunks.DEFINITIONS, json.dumps(document, separators=(",", ":")).encode(), "definitions", 0)

    def add(self, table: str, columns: Sequence[array[int]]) -> None:
        """Adds rows to a table, or replaces the table where it is one of totals."""
        kind = chunks.TABLE_KINDS[table]
        described = chunks.TABLES[kind]
        rows = len(columns[0])
        if rows or described.replaces:
            self._chunk(kind, chunks.table_payload(described, columns), table, rows)

    def add_executions(self, columns: Sequence[array[int]], operator_ns: array[int]) -> None:
        """Adds executions with the times of their operators."""
        if len(columns[0]):
            self.add("executions", columns)
            payload = chunks.integers_payload([operator_ns])
            self._chunk(chunks.OPERATOR_TIMES, payload, "operator_ns", len(operator_ns))

    def state(self, state: State) -> None:
        """Says how far the profile came."""
        document = asdict(state)
        document["dropped"] = {**state.dropped, **self.dropped}
        self._chunk(chunks.STATE, json.dumps(document).encode(), "state", 0)

    def _chunk(self, kind: bytes, payload: bytes, table: str, rows: int) -> None:
        """Takes the next chunk, with so many rows of a table."""
        raise NotImplementedError

    def _number(self, place: Place, new: list[Place]) -> int:
        number = self._places.get(place)
        if number is None:
            number = self._places[place] = len(self._places)
            new.append(place)
        return number
