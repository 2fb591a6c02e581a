from __future__ import annotations

import json

import pytest

from neurontools.text.go_json import JsonValue, indented, string


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0, "0"),
        (-1.5, "-1.5"),
        ([], "[]"),
        ({}, "{}"),
        ([1, []], "[\n    1,\n    []\n]"),
        ({"a": {"b": None}}, '{\n    "a": {\n        "b": null\n    }\n}'),
    ],
)
def test_layout(value: JsonValue, text: str) -> None:
    assert indented(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", '"plain"'),
        ('"\\', r'"\"\\"'),
        ("<>&", r'"\u003c\u003e\u0026"'),
        ("\b\f\n\r\t\0\x1b", r'"\b\f\n\r\t\u0000\u001b"'),
        ("\x7f\x9b\u2028\u202e", r'"\u007f\u009b\u2028\u202e"'),
        ("é神\U0001f600", '"é神\U0001f600"'),
        ("\ud800", '"\ufffd"'),
    ],
)
def test_escapes(value: str, text: str) -> None:
    assert string(value) == text
    assert json.loads(text) == value.replace("\ud800", "\ufffd")
