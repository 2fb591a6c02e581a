"""By which columns the process list is sorted, as keys and dialogs change it."""

from __future__ import annotations

from neurontools.tui.settings import DashboardSettings
from neurontools.views.process_table import BY_KEY


def sort_by(settings: DashboardSettings, key: str) -> None:
    """Sort by a column first; by the same again: the other way round."""
    if settings.sort == key:
        settings.is_descending = not settings.is_descending
        return
    settings.sort, settings.is_descending = key, _begins_descending(key)
    if settings.then_sort == key:
        settings.then_sort = ""


def then_sort_by(settings: DashboardSettings, key: str) -> None:
    """Sort by this column where the first is alike; by the same again: the other way round, and then no more."""
    if settings.then_sort != key:
        settings.then_sort, settings.is_then_descending = key, _begins_descending(key)
    elif settings.is_then_descending is _begins_descending(key):
        settings.is_then_descending = not settings.is_then_descending
    else:
        settings.then_sort = ""


def _begins_descending(key: str) -> bool:
    """Numbers begin with the largest."""
    return not BY_KEY[key].is_text and key not in ("pid", "cores", "device")
