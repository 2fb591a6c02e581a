"""Served models over processes and hosts. A model is identified by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from neurontools.fleet.states import HostLink, HostState
from neurontools.fleet.summary import ModelTotals, combine_models


@dataclass(frozen=True, slots=True)
class FleetModel(ModelTotals):
    """A served model on all live hosts that list it."""

    host_count: int = 1


def fleet_models(states: Iterable[HostState]) -> tuple[FleetModel, ...]:
    """Returns the models that the live hosts list, those with the most device memory first."""
    summaries = [state.summary for state in states if state.link is HostLink.LIVE and state.summary is not None]
    host_counts = Counter(name for found in summaries for name in {model.name for model in found.models})
    found = []
    for model in combine_models(model for each in summaries for model in each.models):
        totals: dict[str, Any] = {field.name: getattr(model, field.name) for field in fields(model)}
        found.append(FleetModel(**totals, host_count=host_counts[model.name]))
    return tuple(found)
