"""Why nothing can be estimated."""

from __future__ import annotations


class EstimateError(ValueError):
    """What was given can't be used; the text is one line with the thing, the cause and the next step."""
