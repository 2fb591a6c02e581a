"""What keys do to the setup."""

from __future__ import annotations

from neurontools.tui.actions.process import ProcessActions


class SetupActions(ProcessActions):
    """The actions that choose what is shown, and how."""

    def show_setup(self) -> None:
        """Open the setup."""
        from neurontools.tui.setup.menu import menu

        self.choices = menu(self)

    def choose_sort(self) -> None:
        """Choose the columns to sort by."""
        from neurontools.tui.setup.sorting import sorting

        self.show_page("processes")
        self.choices = sorting(self)
