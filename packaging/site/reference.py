"""Makes the reference pages of the site from the files that define the API, the settings and the Helm values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PROTO = "neurontools/v1/neuron.proto"
_SETTINGS = "deploy/neurond.toml"
_VALUES = "deploy/kubernetes/chart/values.yaml"
_BLOCK = re.compile(r"^(service|message|enum) (\w+) \{(\})?$")
_METHOD = re.compile(r"rpc (\w+)\((\w+)\) returns \((stream )?(\w+)\);")
_FIELD = re.compile(r"(?:(optional|repeated) )?([\w.]+|map<[^>]+>) (\w+) = (\d+);")
_ONE_OF = re.compile(r"oneof (\w+) \{")
_VALUE = re.compile(r"(\w+) = (\d+);")


@dataclass
class _Block:
    kind: str
    name: str
    text: str
    rows: list[tuple[str, ...]] = field(default_factory=list)


def reference_pages(root: Path) -> dict[str, str]:
    """Returns the Markdown of each page by its place in the site.

    Raises ValueError if a file has a line that the pages would leave out.
    """
    return {
        "reference/grpc-api.md": _api_page((root / _PROTO).read_text("utf-8")),
        "reference/neurond-toml.md": (
            "# Settings of neurond\n\nThe file neurond.toml with every setting and its default. "
            f"neurond(8) explains where it is.\n\n```toml\n{(root / _SETTINGS).read_text('utf-8')}```\n"
        ),
        "reference/helm-values.md": _values_page(
            (root / _VALUES).read_text("utf-8"), json.loads((root / _VALUES.replace("yaml", "schema.json")).read_text())
        ),
    }


def _api_page(proto: str) -> str:
    """Returns the page of the gRPC API: each service and message with its comments."""
    blocks = list(_blocks(proto.splitlines()))
    names = {block.name for block in blocks}
    introduction, _, _ = proto.partition("\nsyntax")
    lines = ["# gRPC API", "", _comment_text(introduction.splitlines())]
    for kind, title in (("service", "Services"), ("message", "Messages"), ("enum", "Enumerations")):
        lines += ["", f"## {title}"]
        for block in (each for each in blocks if each.kind == kind):
            lines += ["", f"### {block.name}", "", block.text, ""]
            if not block.rows:
                continue
            heads = {
                "service": ("method", "request", "reply", "description"),
                "message": ("number", "field", "type", "description"),
                "enum": ("number", "value", "description"),
            }[kind]
            lines += [_row(heads), _row(("---",) * len(heads))]
            lines += [_row(tuple(_linked(cell, names) for cell in row)) for row in block.rows]
    return "\n".join(lines) + "\n"


def _blocks(lines: list[str]) -> Iterator[_Block]:
    """Yields the services, messages and enumerations. They are not nested."""
    comment: list[str] = []
    block: _Block | None = None
    choice = ""
    for number, line in enumerate(map(str.strip, lines), 1):
        if line.startswith("//"):
            comment.append(line)
            continue
        text = _comment_text(comment)
        if start := _BLOCK.match(line):
            block = _Block(start[1], start[2], text)
            if start[3]:
                yield block
        elif found := _ONE_OF.fullmatch(line):
            choice = f"One of `{found[1]}`. "
        elif line == "}" and choice:
            choice = ""
        elif line == "}" and block is not None:
            yield block
            block = None
        elif line and block is not None and not line.startswith("reserved "):
            block.rows.append(_cells(block.kind, line, choice + text, number))
        comment = []


def _cells(kind: str, line: str, text: str, number: int) -> tuple[str, ...]:
    pattern = {"service": _METHOD, "message": _FIELD, "enum": _VALUE}[kind]
    found = pattern.fullmatch(line)
    if found is None:
        raise ValueError(f"{_PROTO}:{number}: the page of the API can't show this line; extend {Path(__file__).name}")
    if kind == "service":
        return f"`{found[1]}`", found[2], f"{found[3] or ''}{found[4]}", text
    if kind == "message":
        return found[4], f"`{found[3]}`", f"{found[1] + ' ' if found[1] else ''}{found[2]}", text
    return found[2], f"`{found[1]}`", text


def _values_page(values: str, schema: Any) -> str:
    """Returns the page of the chart: the commented defaults, and the type that the schema requires of each value."""
    rows = [_row(("value", "type")), _row(("---", "---"))]
    rows += [_row((f"`{name}`", kind)) for name, kind in _kinds(schema, schema, "")]
    return (
        "# Values of the Helm chart\n\nThe schema of the chart refuses other names and types.\n\n"
        + "\n".join(rows)
        + f"\n\n## Defaults\n\n```yaml\n{values}```\n"
    )


def _kinds(schema: Any, part: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Yields the dotted name and the type of each value below `part` of the schema."""
    for name, each in part.get("properties", {}).items():
        described = schema["definitions"][each["$ref"].rpartition("/")[2]] if "$ref" in each else each
        kinds = described.get("type") or [f"`{value}`" for value in described["enum"]]
        kind = kinds if isinstance(kinds, str) else " or ".join(kinds)
        limits = [f"{key} {described[key]}" for key in ("minimum", "maximum") if key in described]
        yield prefix + name, ", ".join([kind, *limits])
        yield from _kinds(schema, described, f"{prefix}{name}.")


def _comment_text(lines: list[str]) -> str:
    """Returns the text of comment lines. An empty comment line separates paragraphs."""
    texts = [line.removeprefix("//").strip() for line in lines if not line.startswith("// buf:")]
    return "\n\n".join(" ".join(part.split("\n")).strip() for part in "\n".join(texts).split("\n\n"))


def _linked(cell: str, names: set[str]) -> str:
    """Returns a type with a link to its heading."""
    words = cell.split(" ")
    if len(words) <= 2 and words[-1] in names:
        return " ".join([*words[:-1], f"[{words[-1]}](#{words[-1].lower()})"])
    return cell


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n\n", "<br>") for cell in cells) + " |"
