"""A JSON document in lines that a person can compare."""

from __future__ import annotations

import json
from collections.abc import Iterator


def document_lines(document: object, name: str) -> Iterator[str]:
    """The parts of a JSON document, a line for each that is short."""
    text = json.dumps(document)
    if len(text) < 1500 or not isinstance(document, dict | list):
        yield f"{name} {text}"
    elif isinstance(document, list):
        for number, each in enumerate(document):
            yield from document_lines(each, f"{name}[{number}]")
    else:
        inner = {key: each for key, each in document.items() if "{" in json.dumps(each)}
        yield f"{name} {json.dumps({key: each for key, each in document.items() if key not in inner})}"
        for key, each in inner.items():
            yield from document_lines(each, f"{name}.{key}")
