"""Hooks of mkdocs: add the pages from outside docs/ to the site, and turn links between files into links of the site.

mkdocs calls the functions `on_...` by their names. Each manual page becomes a page below man/ by `mandoc -T markdown`.
`reference.py` makes the pages below reference/.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads hooks by path
from reference import reference_pages

ROOT = Path(__file__).parents[2]
_FILES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "deploy/FLEET.md")
_LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)\s]*)?(\))")
_FOREIGN_SCRIPT = re.compile(r'<script src="https://[^"]*"></script>')
_MANUAL = re.compile(r"(?<![\w`])neuron[-a-z]*\([1-8]\)")


def _manual_pages() -> dict[str, str]:
    """Returns the name of each manual page, such as neuron-ls(1), with its path in the repository."""
    return {f"{path.stem}({path.suffix[1:]})": f"man/{path.name}" for path in sorted(ROOT.glob("man/*.[1-8]"))}


_MANUALS = _manual_pages()
_REFERENCE = reference_pages(ROOT)


def _site_uri(path: str) -> str:
    """Returns the place in the site of a file of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("man/"):
        return f"{path}.md"
    return path.removeprefix("docs/").removeprefix("deploy/")


def on_config(config: Any) -> Any:
    """Appends the reference and the manual pages to the navigation."""
    config.nav.insert(-1, {"Reference": list(_REFERENCE)})
    config.nav.insert(-1, {"Manual pages": [{name: _site_uri(path)} for name, path in _MANUALS.items()]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from outside docs/."""
    for path in _FILES:
        files.append(File.generated(config, _site_uri(path), content=(ROOT / path).read_text("utf-8")))
    for path in _MANUALS.values():
        files.append(File.generated(config, _site_uri(path), content=_manual_page(ROOT / path)))
    for uri, content in _REFERENCE.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites links to files of the repository, and makes names of manual pages links.

    Raises PluginError if a linked file does not exist.
    """
    uri = page.file.src_uri
    repository_path = next((path for path in (*_FILES, *_MANUALS.values()) if _site_uri(path) == uri), f"docs/{uri}")

    def rewritten(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(repository_path), match[2]))
        if not (ROOT / target).exists():
            raise PluginError(f"{repository_path}: {match[2]} does not exist; correct the link")
        return f"{match[1]}{_relative_uri(target, uri)}{match[3] or ''}{match[4]}"

    def linked_manual(match: re.Match[str]) -> str:
        path = _MANUALS.get(match[0])
        return match[0] if path is None else f"[{match[0]}]({_relative_uri(path, uri)})"

    markdown = _LINK.sub(rewritten, markdown)
    title, newline, text = markdown.partition("\n")
    return title + newline + _MANUAL.sub(linked_manual, text)


def on_post_page(output: str, **_: Any) -> str:
    """Removes the script that the theme loads from another host for search in files without a server."""
    return _FOREIGN_SCRIPT.sub("", output)


def on_post_template(output_content: str, **_: Any) -> str:
    """Does the same for pages that no file makes, such as 404.html."""
    return _FOREIGN_SCRIPT.sub("", output_content)


def _relative_uri(path: str, from_uri: str) -> str:
    return posixpath.relpath(_site_uri(path), posixpath.dirname(from_uri) or ".")


def _manual_page(path: Path) -> str:
    """Returns a manual page as Markdown, with its name and section as title."""
    try:
        done = subprocess.run(["mandoc", "-T", "markdown", str(path)], capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise PluginError("mandoc is not installed; install it with your package manager") from error
    lines = done.stdout.splitlines()[1:-1]  # without the header and the footer
    body = "\n".join(re.sub("^(#+ )", r"#\1", line) for line in lines)
    return f"# {path.stem}({path.suffix[1:]})\n{body}\n"
