"""What keys do to time: pause, steps, events, recordings, the window of the plots."""

from __future__ import annotations

from neurontools.tui.dashboard_state import DashboardState
from neurontools.views.drawing.line import foreign

_WINDOWS = (60.0, 300.0, 900.0, 3600.0)


class TimeActions(DashboardState):
    """The actions on time, and how it is plotted."""

    def toggle_pause(self) -> None:
        """Hold what is shown, or go on."""
        self.time.toggle_pause()

    def step_back(self) -> None:
        """One moment back."""
        self.time.step(-1)

    def step_forward(self) -> None:
        """One moment forward."""
        self.time.step(1)

    def leap_back(self) -> None:
        """A minute back."""
        self.time.leap(-60.0)

    def leap_forward(self) -> None:
        """A minute forward."""
        self.time.leap(60.0)

    def next_event(self) -> None:
        """To the next match of the page's search, else the next event."""
        if self._is_searching(1):
            return
        if not self.time.to_event(1):
            self.tell("no later event")

    def previous_event(self) -> None:
        """To the match or event before."""
        if self._is_searching(-1):
            return
        if not self.time.to_event(-1):
            self.tell("no earlier event")

    def _is_searching(self, step: int) -> bool:
        """Go to another match where there is a search; whether there is."""
        if not self.search_text:
            return False
        shown = foreign(self.search_text, 80)
        if not self.to_match(step):
            self.tell(f"nothing is found: {shown}")
        elif self.page != "processes" and (scene := self.scene()) is not None:  # which tells it in its heading
            self.tell(f"search: {shown}, {scene.found_text}")
        return True

    def go_live(self) -> None:
        """To the latest moment; of a recording that is being loaded, to its end as it comes."""
        self.time.go_live()
        if loading := self.time.loading_text():
            self.tell(f"the recording is {loading}; this goes to its end as it comes")

    def toggle_recording(self) -> None:
        """Start or end a recording."""
        self.tell(self.shell.toggle_recording())

    def toggle_colouring(self) -> None:
        """Colour devices by the other quantity."""
        self.settings.colour_by = "memory" if self.settings.colour_by == "utilization" else "utilization"

    def next_window(self) -> None:
        """The next time window."""
        later = [window for window in _WINDOWS if window > self.settings.window_seconds]
        self.settings.window_seconds = later[0] if later else _WINDOWS[0]
