"""Label texts that are made once and used at every scrape."""

from __future__ import annotations

from neurontools.exporters.exposition import label_text

_MOST = 50_000  # far above the series of a host; a bound for processes that come and go for months


class LabelTexts:
    """Remembers the text of label sets that all have the same base labels."""

    def __init__(self, base: tuple[tuple[str, str], ...] = ()) -> None:
        self.base = base
        self._texts: dict[tuple[tuple[str, str], ...], str] = {}

    def __call__(self, *labels: tuple[str, str]) -> str:
        """The text of these labels and the base."""
        text = self._texts.get(labels)
        if text is None:
            if len(self._texts) >= _MOST:
                self._texts.clear()
            text = self._texts[labels] = label_text(self.base + labels)
        return text
