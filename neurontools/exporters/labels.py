"""Label texts that are made once and used at every scrape."""

from __future__ import annotations

from neurontools.exporters.exposition import label_text

_MOST = 2048  # above what one host has of a kind; a bound for processes that come and go for months


class Texts:
    """The texts of label sets with the same names, by their values."""

    def __init__(self, base: tuple[tuple[str, str], ...], names: tuple[str, ...]) -> None:
        self._base = base
        self._names = names
        self._texts: dict[tuple[str | int, ...], str] = {}

    def __call__(self, *values: str | int) -> str:
        """The text of these values, in the order of the names."""
        text = self._texts.get(values)
        if text is None:
            if len(self._texts) >= _MOST:
                self._texts.clear()
            labels = zip(self._names, map(str, values), strict=True)
            text = self._texts[values] = label_text((*self._base, *labels))
        return text


class Rows:
    """The texts of label sets that differ in the last label, which has the same few values in each of them."""

    def __init__(self, base: tuple[tuple[str, str], ...], names: tuple[str, ...], last: tuple[str, ...]) -> None:
        self._base = base
        self._names = names
        self._last = last
        self._rows: dict[tuple[str | int, ...], tuple[str, ...]] = {}

    def __call__(self, *values: str | int) -> tuple[str, ...]:
        """The texts of these values, one for each value of the last name."""
        row = self._rows.get(values)
        if row is None:
            if len(self._rows) >= _MOST:
                self._rows.clear()
            *names, last = self._names
            labels = (*self._base, *zip(names, map(str, values), strict=True))
            row = self._rows[values] = tuple(label_text((*labels, (last, value))) for value in self._last)
        return row


class LabelTexts:
    """Label sets that all have the same base labels."""

    def __init__(self, base: tuple[tuple[str, str], ...] = ()) -> None:
        self.base = base
        self._texts: dict[tuple[str, ...], Texts] = {}
        self._rows: dict[tuple[tuple[str, ...], tuple[str, ...]], Rows] = {}

    def named(self, *names: str) -> Texts:
        """Those with the base and these names."""
        texts = self._texts.get(names)
        if texts is None:
            texts = self._texts[names] = Texts(self.base, names)
        return texts

    def rows(self, *names: str, last: tuple[str, ...]) -> Rows:
        """Those with the base and these names, the last of which has each of these values."""
        rows = self._rows.get((names, last))
        if rows is None:
            rows = self._rows[names, last] = Rows(self.base, names, last)
        return rows
