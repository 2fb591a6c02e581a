"""Label texts that are made once and used at every scrape."""

from __future__ import annotations

from neurontools.exporters.exposition import label_text

_MOST = 50_000  # far above the series of a host; a bound for processes that come and go for months


class LabelTexts:
    """Remembers the text of label sets that all have the same base labels."""

    def __init__(self, base: tuple[tuple[str, str], ...] = ()) -> None:
        self.base = base
        self._texts: dict[tuple[tuple[str, str], ...], str] = {}
        self._rows: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[str, ...]] = {}

    def __call__(self, *labels: tuple[str, str]) -> str:
        """The text of these labels and the base."""
        text = self._texts.get(labels)
        if text is None:
            if len(self._texts) >= _MOST:
                self._texts.clear()
            text = self._texts[labels] = label_text(self.base + labels)
        return text

    def each(self, name: str, values: tuple[str, ...], *labels: tuple[str, str]) -> tuple[str, ...]:
        """The texts of these labels with each value of one more; a name always comes with the same values."""
        key = (name, labels)
        texts = self._rows.get(key)
        if texts is None:
            if len(self._rows) >= _MOST:
                self._rows.clear()
            texts = self._rows[key] = tuple(label_text((*self.base, *labels, (name, value))) for value in values)
        return texts
