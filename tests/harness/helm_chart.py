"""Renders a chart with Helm's own library, for each of the values on standard input, a list in JSON.

Prints a list: the texts by path and what Helm's checks complain of, or the `error` with which Helm refuses the values.
Run by the interpreter that has helm-python-sdk, with the chart's directory.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import helm_python


def answer(directory: str, values: dict[str, Any]) -> dict[str, Any]:
    """Render, after Helm's own checks of the chart."""
    try:
        with helm_python.Chart.load(directory) as chart:
            chart.validate_schema(values)
            rendered = chart.render(values, name="watch", namespace="elsewhere")
    except helm_python.HelmError as error:
        return {"error": str(error)}
    found = helm_python.lint(directory, values, strict=True)
    worse_than_hints = [message for message in found["messages"] if message["severity"] > 1]
    return {"rendered": rendered, "lint": worse_than_hints + found["errors"]}


if __name__ == "__main__":
    print(json.dumps([answer(sys.argv[1], values) for values in json.load(sys.stdin)]))
