"""The API over TLS in the metrics."""

from __future__ import annotations

from collections.abc import Iterator

from neurond.peers.network_gate import NetworkGate
from neurontools.exporters.exposition import Definition, Family, Kind, label_text

CONNECTIONS = Definition(
    "neurontools_network_connections", Kind.COUNTER, "Connections to the API over TLS that came to an outcome"
)
OPEN = Definition("neurontools_network_open_connections", Kind.GAUGE, "Connections to the API over TLS that are open")


def network_families(gate: NetworkGate) -> Iterator[Family]:
    """How many came in, and how many didn't."""
    outcomes = [(label_text([("outcome", outcome)]), count) for outcome, count in gate.outcomes.items()]
    yield Family(CONNECTIONS, outcomes)
    yield Family(OPEN, [("", gate.open_count)])
