"""The whole screen: title, the page, the scrubber while one looks back, tabs, and the keys."""

from __future__ import annotations

from neurontools.model import Severity, SourceKind, health
from neurontools.util import units
from neurontools.util.units import clock_text, date_text
from neurontools.util.version import __version__
from neurontools.views.drawing.glyphs import ASCII
from neurontools.views.drawing.line import (
    BLANK,
    Page,
    Run,
    Target,
    ascii_only,
    clip,
    fit,
    foreign,
    line_width,
    styled,
    width_of,
)
from neurontools.views.drawing.scene import Scene
from neurontools.views.drawing.style import FOUND
from neurontools.views.drawing.tabs import tab_bar
from neurontools.views.pages import PAGES, page_named

_LEAST_NAME_CELLS = 5  # of the instance type, in the title
_GRAVE_STYLES = ("title_critical", "title_warning")


def frame(scene: Scene, width: int, height: int) -> Page:
    """Exactly `height` lines of exactly `width` cells."""
    page = Page()
    if width <= 0 or height <= 0:
        return page
    page.append(title(scene, width))
    foot = Page()
    if scene.clock.is_past and height >= 6:
        foot.append(scrubber(scene, width))
    if height >= 5:
        foot.append(tab_bar(scene, width))
    if height >= 4:
        foot.append(key_bar(scene, width))
    body_lines = height - 1 - len(foot.lines)
    if body_lines > 0:
        body = page_named(scene.page).draw(scene, width, body_lines)
        del body.lines[body_lines:]
        body.lines.extend([BLANK] * (body_lines - len(body.lines)))
        _brighten(scene, body)
        page.append(body)
    page.append(foot)
    page.lines = [line if line_width(line) == width else fit(line, width) for line in page.lines[:height]]
    if scene.glyphs is ASCII:
        page.lines = [ascii_only(line) for line in page.lines]
    return page


def _brighten(scene: Scene, body: Page) -> None:
    """Make the rows bright that a search finds."""
    for target in body.targets if scene.found else ():
        if target.action == "row" and int(target.argument) in scene.found and target.row < len(body.lines):
            body.lines[target.row] = styled(body.lines[target.row], FOUND)


def title(scene: Scene, width: int) -> Page:
    """What runs where, and which moment is shown."""
    instance = scene.snapshot.instance
    where = f"{foreign(instance.instance_id or 'this host', 60)} ({foreign(instance.instance_type, 40)})"
    text = f" neuron-top {__version__} running on {where}"
    if width < 100:
        text = f" neuron-top {where}" if width >= 60 else f" {foreign(instance.instance_type, 40)}"
    notes = []
    if hidden := scene.figures.hidden_devices:
        notes.append(f"{len(scene.snapshot.devices) - len(hidden)} of {len(scene.snapshot.devices)} devices")
    if scene.snapshot.source is SourceKind.SIMULATED:
        notes.append("simulated")
    if scene.snapshot.synthetic_load:
        notes.append(f"synthetic load: {foreign(scene.snapshot.synthetic_load, 30)}")
    note = f" [{', '.join(notes)}]" if notes else ""
    needed = notes[:1] if hidden else []
    needed += ["synthetic"] if scene.snapshot.synthetic_load else ["simulated"] if "simulated" in notes else []
    short = f" [{', '.join(needed)}]" if needed else ""
    name = f" {foreign(instance.instance_type, 40)}"
    right = _right_of_title(scene, width - width_of(short) - _LEAST_NAME_CELLS)
    room = max(0, width - line_width(right))
    for left in (text + note, text + short, f" neuron-top {where}{short}", name + short):
        if width_of(left) <= room:
            break
    else:
        # The name of the host is cut before the mark that it is none.
        left = clip(name, max(0, room - width_of(short)), mark=True) + short
    runs: list[Run] = [(left, "title"), (" " * (room - width_of(left)), "title")]
    targets = []
    at = width - line_width(right)
    for run_text, style in right:
        if style in _GRAVE_STYLES:
            targets.append(Target(0, at, at + width_of(run_text), "page", "health"))
        at += width_of(run_text)
    return Page([fit((*runs, *right), width, "title")], targets)


def _right_of_title(scene: Scene, room: int) -> list[Run]:
    """What is recorded, what is wrong and the clock, as long as there is room for it; the clock's badge always."""
    clock = scene.clock
    moment = clock_text(scene.snapshot.taken_at_unix_seconds)
    recording: list[Run] = []
    if clock.recording:
        recording = [(f" {scene.glyphs.recording} {clip(clock.recording, 24, mark=True)} ", "title_bad")]
    badge: list[Run] = [(f" {clock.badge} ", clock.style)] if clock.badge else []
    full: list[Run] = [(f" {clock.badge} {moment} " if clock.badge else f" {moment} ", clock.style)]
    grave, brief = _grave(scene, is_brief=False), _grave(scene, is_brief=True)
    for right in ([*recording, *grave, *full], [*grave, *full], [*brief, *full], [*brief, *badge]):
        if line_width(right) <= room:
            return right
    return badge or full


def _grave(scene: Scene, *, is_brief: bool) -> list[Run]:
    """How much is wrong, the gravest in words, and the key that tells what; brief: how much of the gravest there is."""
    found = health.counts(scene.snapshot)
    runs: list[Run] = []
    for severity, noun, mark, style in (
        (Severity.CRITICAL, "critical", scene.glyphs.bad, _GRAVE_STYLES[0]),
        (Severity.WARNING, "warning", scene.glyphs.warn, _GRAVE_STYLES[1]),
    ):
        count = found.get(severity, 0)
        if count and (not is_brief or not runs):
            plural = "s" if count > 1 and severity is Severity.WARNING else ""
            runs.append((f" {mark} {count} " if is_brief or runs else f" {mark} {count} {noun}{plural} ", style))
    if runs and not is_brief and scene.clock.badge and scene.has_keys:
        runs[-1] = (f"{runs[-1][0]}{scene.glyphs.track} e ", runs[-1][1])
    return runs


def scrubber(scene: Scene, width: int) -> Page:
    """Where in the known past the shown moment is; the line can be clicked."""
    clock = scene.clock
    before = clock.last - clock.shown
    text = f" {date_text(clock.shown_at_unix_seconds)} " + (
        f"{units.duration_text(before)} back " if before >= 0.05 else "latest "
    )
    span = f" of {units.duration_text(clock.last - clock.first)} "
    if width < 50:
        span = ""
    room = max(1, width - len(text) - len(span) - 4)
    cells = [scene.glyphs.rule] * room
    styles = ["rule"] * room

    def place(at: float) -> int:
        share = (at - clock.first) / (clock.last - clock.first) if clock.last > clock.first else 1.0
        return min(room - 1, max(0, round(share * (room - 1))))

    for at in clock.event_times:
        if clock.first <= at <= clock.last:
            cells[place(at)], styles[place(at)] = "!", "warn"
    shown = place(clock.shown)
    cells[shown], styles[shown] = scene.glyphs.position, "strong"
    runs: list[Run] = [(text, "strong"), ("[", "key")]
    for character, style in zip(cells, styles, strict=True):
        if runs[-1][1] == style and len(runs) > 2:
            runs[-1] = (runs[-1][0] + character, style)
        else:
            runs.append((character, style))
    runs += [("]", "key"), (span, "dim")]
    left = len(text) + 1
    targets = [
        Target(0, left + position, left + position + 1, "scrub", str(position / max(1, room - 1)))
        for position in range(room)
    ]
    return Page([fit(runs, width)], targets)


def key_bar(scene: Scene, width: int) -> Page:
    """What went wrong or was just done, else the pages and the most needed keys, each to be clicked."""
    trouble = scene.clock.trouble or scene.message
    if trouble:
        style = "bad" if scene.clock.trouble else "strong"
        return Page([fit(((f" {clip(foreign(trouble), width - 2, mark=True)}", style),), width)])
    runs: list[Run] = []
    targets: list[Target] = []
    left = 0

    def item(key: str, text: str, action: str, argument: str, *, usual_key: str = "", is_current: bool = False) -> None:
        nonlocal left
        key = scene.key_texts.get(usual_key, key)
        if left + len(key) + len(text) + 3 > width:
            return
        runs.extend([(f" {key}", "key"), (f" {text} ", "tab_current" if is_current else "dim")])
        cells = len(key) + len(text) + 3
        targets.append(Target(0, left, left + cells, action, argument))
        left += cells

    item("q", "quit", "key", "q", usual_key="q")
    item("?", "help", "key", "question_mark", usual_key="question_mark")
    for page in PAGES:
        item(
            page.key,
            page.title if width >= 100 else page.short_title,
            "page",
            page.name,
            usual_key=page.key,
            is_current=page.name == scene.page,
        )
    if width >= 72:
        for key, text, argument in page_named(scene.page).hints:
            item(key, text, "key", argument, usual_key=argument)
    return Page([fit(runs, width)], targets)
