"""Renders a chart with Helm's own library, for values on standard input as JSON; prints its texts by path, as JSON.

Run by the interpreter that has helm-python-sdk, with the chart's directory. What Helm refuses ends it with 3.
"""

from __future__ import annotations

import json
import sys

import helm_python


def main() -> int:
    """Render, after Helm's own checks of the chart."""
    values = json.load(sys.stdin)
    try:
        with helm_python.Chart.load(sys.argv[1]) as chart:
            chart.validate_schema(values)
            rendered = chart.render(values, name="watch", namespace="elsewhere")
    except helm_python.HelmError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    found = helm_python.lint(sys.argv[1], values, strict=True)
    worse_than_hints = [message for message in found["messages"] if message["severity"] > 1]
    sys.stdout.write(json.dumps({"rendered": rendered, "lint": worse_than_hints + found["errors"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
