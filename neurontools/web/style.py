"""The style sheet: the styles of neuron-top's themes, by light and by dark, and cells as wide as in a terminal."""

from __future__ import annotations

from functools import cache

from neurontools.views.drawing.style import DARK, LIGHT, Style, Theme
from neurontools.web.choice import COLUMNS

_LAYOUT = """
:root{color-scheme:light dark}
html{overflow-y:scroll}
body{margin:0 auto;padding:.5rem 1rem;width:fit-content;max-width:calc(100vw - 2rem)}
body,input,button{font:14px/1.25 "DejaVu Sans Mono",ui-monospace,Menlo,Consolas,"Liberation Mono",monospace}
main{white-space:pre;overflow-x:auto}
h1,h2{font:inherit;margin:0}
.l{min-height:1.25em}
header nav a,header form{display:inline-block;margin-right:1ch}
header nav{margin-bottom:.3rem}
a{color:inherit}
main a{text-decoration-style:dotted;text-underline-offset:.2em}
a:focus-visible,input:focus-visible,button:focus-visible{outline:2px solid currentColor;outline-offset:2px}
header a[aria-current]{font-weight:bold;text-decoration:none}
.skip{position:absolute;left:-999em}.skip:focus{position:static}
#state{margin:0}#state:not(:empty){padding:.3rem 1ch;margin-bottom:.3rem;font-weight:bold}
.lost{opacity:.6}
footer{margin-top:1rem;max-width:80ch}footer p{margin:.2rem 0}
.notice{white-space:normal;max-width:72ch}.notice h1{font-weight:bold;font-size:1.3rem;margin:.5rem 0}
[class^=_],[class*=" _"]{display:inline-block;vertical-align:top;height:1.25em;overflow:hidden}
"""
_MOST_CELLS = max(COLUMNS)
_CELL_EM = 0.602  # the width of a cell of common fonts


@cache
def style_sheet() -> bytes:
    """The style sheet."""
    parts = [_LAYOUT]
    parts += [f"._{cells}{{width:{cells}ch}}" for cells in range(1, _MOST_CELLS + 1)]
    parts += [f".c{cells}{{font-size:min(1em,calc((100vw - 3rem)/{cells * _CELL_EM:.1f}))}}" for cells in COLUMNS]
    parts.append(_theme(LIGHT, "#ffffff"))
    parts.append(f"@media(prefers-color-scheme:dark){{{_theme(DARK, '#0d1117')}}}")
    return "".join(parts).encode()


def _theme(theme: Theme, ground: str) -> str:
    text = theme.styles["text"]
    rules = [f"body{{background:{ground};color:{text.color}}}"]
    rules += [f".{name}{{{_declarations(style)}}}" for name, style in theme.styles.items() if name != "text"]
    rules.append(f"#state:not(:empty){{{_declarations(theme.styles['title_bad'])}}}")
    return "".join(rules)


def _declarations(style: Style) -> str:
    declared = []
    if style.color is not None:
        declared.append(f"color:{style.color}")
    if style.background is not None:
        declared.append(f"background:{style.background}")
    if style.bold:
        declared.append("font-weight:bold")
    return ";".join(declared)
