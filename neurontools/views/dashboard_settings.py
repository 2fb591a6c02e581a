"""The settings of the dashboard that are saved between runs.

A module of its own, because the first frame needs the settings, but not the view of a feed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from neurontools.views.process_table import BY_KEY


@dataclass
class DashboardSettings:
    """Settings of the dashboard that are saved between runs."""

    theme: str = "auto"
    ascii: bool = False
    page: str = "overview"
    show_flops: bool = False
    layout: str = "full"  # of the overview: one of LAYOUTS
    panels: tuple[str, ...] = ()  # of the overview, from the top: names of OVERVIEW_PANELS; empty: all
    plot_metric: str = "utilization"  # of the overview's first plot: one of PLOT_METRICS
    sort: str = "pid"
    is_descending: bool = False
    window_seconds: float = 60.0
    colour_by: str = "utilization"
    then_sort: str = ""  # key of the secondary sort column; "": none
    is_then_descending: bool = False
    columns: tuple[str, ...] = ()  # keys of the columns of the process list, in order; empty: all that fit
    start_page: str = ""  # page to start with; "": the last page of the previous run
    idle_below_percent: float = 2.0  # a held core below this utilization is shown as idle
    is_legend_shown: bool = False  # whether a line explains bars, colours and marks; shown at the first start
    late_after_seconds: float = 30.0  # time since the last execution ended; longer times are highlighted

    @property
    def first_page(self) -> str:
        """The page to start with: from the command line, else `start_page`, else the last page of the previous run."""
        return self.page if "page" in self.__dict__.get("_stored", {}) else self.start_page or self.page

    def __setattr__(self, name: str, value: object) -> None:
        """Assigns a setting and ends its override by `show`, so that the new value is saved."""
        object.__setattr__(self, name, value)
        self.__dict__.get("_stored", {}).pop(name, None)

    def show(self, name: str, value: object) -> None:
        """Overrides a setting for this run only, as a command-line option does. The saved value does not change."""
        stored = self.__dict__.setdefault("_stored", {})
        stored.setdefault(name, getattr(self, name))
        object.__setattr__(self, name, value)

    def sort_by(self, key: str) -> None:
        """Makes a column the primary sort column. A second call for the same column reverses the order."""
        if self.sort == key:
            self.is_descending = not self.is_descending
            return
        self.sort, self.is_descending = key, _starts_descending(key)
        if self.then_sort == key:
            self.then_sort = ""

    def then_sort_by(self, key: str) -> None:
        """Makes a column the secondary sort column. A second call reverses its order, a third removes the column."""
        if self.then_sort != key:
            self.then_sort, self.is_then_descending = key, _starts_descending(key)
        elif self.is_then_descending is _starts_descending(key):
            self.is_then_descending = not self.is_then_descending
        else:
            self.then_sort = ""

    def values_to_save(self) -> dict[str, object]:
        """Returns the settings to save, without the overrides for this run."""
        stored: dict[str, object] = self.__dict__.get("_stored", {})
        return asdict(self) | stored


def _starts_descending(key: str) -> bool:
    """Whether a column initially sorts in descending order: True for quantities."""
    return not BY_KEY[key].is_text and key not in ("pid", "cores", "device")
