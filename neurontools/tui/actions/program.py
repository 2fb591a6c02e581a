"""What keys do to the program: help, themes, pictures, the rate of refreshing, the end."""

from __future__ import annotations

from neurontools.client.history.feed import LiveFeed
from neurontools.tui import keys
from neurontools.tui.choices import Choices
from neurontools.tui.dashboard_state import DashboardState
from neurontools.views.drawing.dialog import Dialog

_INTERVALS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class ProgramActions(DashboardState):
    """The actions on the program itself."""

    def quit(self) -> None:
        """End the program."""
        self.shell.quit()

    def suspend(self) -> None:
        """Stop the program and give the shell its terminal, until the shell goes on with it."""
        self.shell.suspend()

    def show_help(self) -> None:
        """Open the help."""
        lines = keys.help_lines(self.keymap.actions)
        self.choices = Choices(Dialog("Keys", lines, hint="Up and down scroll, Esc closes"))

    def show_palette(self) -> None:
        """Open the command palette."""
        self.shell.show_palette()

    def next_theme(self) -> None:
        """Change to the next theme."""
        self.tell(f"theme: {self.shell.next_theme()}")

    def save_screenshot(self) -> None:
        """Save the screen as a picture."""
        self.tell(self.shell.save_screenshot())

    def go_back(self) -> None:
        """Clear the search of the list that is shown, else leave details, else clear the filter."""
        if self.search_text and (self.details_pid is None or self.is_of_surroundings):
            self.search_text = ""
        elif self.details_pid is not None and self.details_of:
            self.show_page(self.details_of)
        elif self.details_pid is not None:
            self.details_pid, self.are_surroundings_shown, self.is_time_shown = None, False, False
        elif self.page == "processes" and self.filter_text:
            self.filter_text = ""

    def faster(self) -> None:
        """Shorten the interval, or replay faster."""
        self._change_rate(1)

    def slower(self) -> None:
        """Lengthen the interval, or replay slower."""
        self._change_rate(-1)

    def _change_rate(self, step: int) -> None:
        if not isinstance(self.feed, LiveFeed):
            self.tell(f"replay at {self.time.change_speed(step):g}x")
            return
        now = self.feed.interval_seconds
        faster = [interval for interval in _INTERVALS if interval < now - 1e-9]
        slower = [interval for interval in _INTERVALS if interval > now + 1e-9]
        wanted = (faster[-1:] if step > 0 else slower[:1]) or [now]
        self.time.interval_seconds = wanted[0]
        self.feed.set_interval(wanted[0])
        self.tell(f"a refresh every {wanted[0]:g} s, as far as the daemon samples that often")
