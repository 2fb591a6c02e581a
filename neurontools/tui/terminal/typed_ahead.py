"""Keys that are typed while one page of the terminal ends and the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_MOST_KEYS = 256

Typed = tuple[str, str | None]
"""A key by Textual's name, and the character that it types."""


class TypedAhead:
    """Has the keys for the page that comes, from `begin` until that takes them. For the event loop's thread."""

    def __init__(self) -> None:
        self.is_kept = False  # the page was left for another one, which is to have what is typed
        self._waiting: list[Typed] = []
        self._unread: list[Typed] = []

    def begin(self) -> None:
        """The page has been left: what is typed from now on is for the next one."""
        self.is_kept = True

    def keep(self, key: str, character: str | None, *, is_unread: bool = False) -> None:
        """Keep a key. One that had been read when the page was left, and waited for it, goes before the others."""
        kept = self._unread if is_unread else self._waiting
        if len(kept) < _MOST_KEYS:
            kept.append((key, character))

    def deliver(self, press: Callable[[str, str | None], object], later: Iterable[Typed] = ()) -> None:
        """Press what was kept, then `later`; those behind one with which the page is left are kept for the next."""
        keys = [*self._waiting, *self._unread, *later]
        self.forget()
        for key, character in keys:
            if self.is_kept:
                self.keep(key, character)
            else:
                press(key, character)

    def forget(self) -> None:
        """The page that this was for has not come."""
        self.is_kept = False
        self._waiting, self._unread = [], []
