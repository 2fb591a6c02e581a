"""The options of neuron-top."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from neurontools.cli.line import (
    DEVICE_OPTION,
    END_CODES,
    FILES,
    HOST_OPTIONS,
    INTERVAL_SECONDS,
    SERVE_CONFIG_OPTION,
    SIMULATE_OPTION,
    SOCKET_OPTION,
    TLS_OPTIONS,
    DeviceSelection,
    Option,
    seconds_option,
    whole_option,
    word_option,
)
from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.terminal import locale_is_utf8
from neurontools.util.units import devices_text

if TYPE_CHECKING:
    from neurontools.model import Snapshot
    from neurontools.views.drawing.figures import DeviceFilter
    from neurontools.views.drawing.glyphs import Glyphs


USAGE = "neuron-top [OPTIONS]"
SUMMARY = (
    "Show what happens on the Neuron devices of this host, live or from a recording.\n"
    "Without a terminal, or with --once, one screen is printed as plain text."
)
# Names of neurond's load scenarios, copied because commands may not import neurond.
LOADS = ("idle", "steady", "training-ramp", "memory-leak", "stuck-core", "ecc-burst")
THEME_NAMES = ("auto", "dark", "light", "colour-blind", "colour-blind-light", "mono")
PAGE_NAMES = ("overview", "processes", "topology", "history", "heatmap", "health", "usage", "host")
COLORS = ("auto", "always", "never")

OPTIONS = (
    Option("help", "print this help", short="h", ends=True),
    Option("version", "print the version", short="V", ends=True),
    Option("once", "print one screen as plain text and end", short="1"),
    Option("interval", "seconds between two refreshes or documents (1)", short="i", value="SECONDS"),
    Option("count", "how many screens, documents or rows to print", short="n", value="N"),
    Option("page", "the page to begin with", value="PAGE", words=PAGE_NAMES),
    Option("filter", "processes to list, as user=root (util<5 or not tag~mlp)", short="f", value="FILTER"),
    Option("user", "only processes of this user", short="u", value="NAME"),
    Option("pid", "only this process", short="p", value="PID"),
    DEVICE_OPTION,
    Option("only-visible", "only the NeuronCores that NEURON_RT_VISIBLE_CORES names"),
    Option("json", "one JSON document; with -n a list of them"),
    Option("json-lines", "a JSON document a line, without end unless -n is given"),
    Option("csv", "a line for each process, with a header"),
    Option("json-schema", "print the JSON Schema of these documents", ends=True),
    Option(
        "output",
        "print to this file and end; the file is replaced as a whole, at the end",
        value="FILE",
        completes=FILES,
    ),
    Option("record", "record the snapshots to a file", value="FILE", completes=FILES),
    Option("replay", "show a recording", value="FILE", completes=FILES),
    Option(
        "export-perfetto", "with --replay: write the recording as a trace for Perfetto", value="OUT", completes=FILES
    ),
    Option(
        "diff", "what differs between two moments or recordings: FILE, FILE@14:05, @-5min", value="A B", completes=FILES
    ),
    Option(
        "summary",
        "what happened in a recording: FILE, FILE@14:05..14:20, @-5min..",
        value="FILE",
        completes=FILES,
    ),
    Option("serve", "serve the pages for browsers, read-only, as 127.0.0.1:8080", value="ADDRESS"),
    SERVE_CONFIG_OPTION,
    Option("read-only", "never send signals"),
    Option("theme", "colours: one of your own, or", value="THEME", words=THEME_NAMES),
    Option("ascii", "draw with ASCII characters alone"),
    Option("color", "auto, always or never; never is the theme mono", value="WHEN", words=COLORS, aliases=("colour",)),
    SOCKET_OPTION,
    SIMULATE_OPTION,
    Option("load", "with --simulate: synthetic load", value="SCENARIO", words=LOADS),
    *HOST_OPTIONS,
    Option("group-by", "with many hosts: alike, type, job, user or a label of theirs", value="WHAT"),
    *TLS_OPTIONS,
    Option("help-keys", "print the actions whose keys can be changed, and their keys", ends=True),
    Option(
        "completion", "print the completion script for a shell", value="SHELL", words=("bash", "zsh", "fish"), ends=True
    ),
)
NOTES = "Keys: press ? in the dashboard, or see neuron-top(1).\n"
VARIABLES = (
    ("NO_COLOR, FORCE_COLOR", "as --color never and --color always"),
    ("XDG_CONFIG_HOME", "the directory of your configuration"),
)
EXIT_CODES = (
    (0, "the requested output was shown"),
    (1, "an option is unknown, a file is not a recording or is damaged, or the command failed"),
    (2, "an option has an invalid value"),
    (4, "this user may not use the socket or read the recording"),
    (6, "there is no such file, moment or device"),
    (12, "no daemon answers"),
    (124, "the daemon did not answer in time"),
    *END_CODES,
)


def interval_option(given: dict[str, str]) -> float:
    return seconds_option(given, "interval", 1.0, *INTERVAL_SECONDS)


def count_option(given: dict[str, str]) -> int | None:
    return whole_option(given, "count", None, 1)


def check_options(given: dict[str, str]) -> None:
    interval_option(given)
    count_option(given)
    filter_option(given)
    DeviceSelection(given.get("device", ""))
    for name, words in (("page", PAGE_NAMES), ("theme", theme_names(given.get("theme"))), ("color", COLORS)):
        word_option(given, name, words, None)


def device_filter_option(given: dict[str, str], environment: Mapping[str, str]) -> DeviceFilter:
    """Returns the device filter that --device and --only-visible describe. Raises UserError if it is invalid."""
    from neurontools.driver.environment import VISIBLE_CORES, InvalidCoreRequest, logical_neuroncore_config
    from neurontools.driver.neuron_runtime import parse_visible_cores
    from neurontools.views.drawing.figures import DeviceFilter

    chosen = DeviceSelection(given.get("device", ""))
    devices, names = frozenset(chosen.indices), frozenset(chosen.names)
    if "only-visible" not in given:
        return DeviceFilter(devices, names)
    text = environment.get(VISIBLE_CORES, "").strip()
    if not text:
        raise UserError(f"--only-visible: {VISIBLE_CORES} is not set; set it, or leave the option out", EXIT_USAGE)
    try:
        first, count_ = parse_visible_cores(text)
        lnc = logical_neuroncore_config(environment)
    except InvalidCoreRequest as error:
        raise UserError(str(error), EXIT_USAGE) from error
    return DeviceFilter(devices, names, first, count_, lnc)


def check_device_filter(device_filter: DeviceFilter, snapshot: Snapshot) -> None:
    """Raises UserError if the host lacks one of the selected devices, or has none of the selected NeuronCores."""
    missing = device_filter.first_missing_device(snapshot)
    if missing:
        present = devices_text(snapshot.devices_by_index)
        raise UserError(f"--device: no device {missing} on this host; it has {present}", EXIT_NOT_FOUND)
    if not device_filter.has_cores(snapshot):
        first, last = device_filter.first_core, device_filter.first_core + (device_filter.core_count or 1) - 1
        named = f"{first}" if first == last else f"{first}-{last}"
        lnc = device_filter.logical_neuroncore_config or snapshot.instance.logical_neuroncore_config
        present = f"it has NeuronCores 0 to {len(snapshot.cores) // lnc - 1}"
        raise UserError(f"--only-visible: no NeuronCore {named} on this host; {present}", EXIT_NOT_FOUND)


def theme_names(theme: str | None) -> tuple[str, ...]:
    """Returns the names of all themes. Reads the user's own themes only if `theme` is no built-in theme."""
    if theme is None or theme in THEME_NAMES:
        return THEME_NAMES
    from neurontools.tui.settings import configuration_path, load_user_configuration, settings_path, summarize_problems
    from neurontools.views.drawing.lines import THEMES

    own = load_user_configuration(configuration_path(settings_path(os.environ)))
    own.register()
    if theme not in THEMES and own.problems:
        raise UserError(f"--theme {theme[:40]}: {summarize_problems(own.problems)}", EXIT_USAGE)
    return ("auto", *THEMES)


def filter_option(given: dict[str, str]) -> str:
    """Joins --filter, --user and --pid to one process filter. Raises UserError if it is invalid."""
    own = [name for name in ("filter", "user", "pid") if given.get(name)]
    if not own:
        return ""
    from neurontools.views.process_filter import InvalidFilter, join_filters, parse_filter, quote_value

    parts = {name: given[name] if name == "filter" else f"{name}={quote_value(given[name])}" for name in own}
    for name, part in parts.items():
        try:
            parse_filter(part)
        except InvalidFilter as error:
            raise UserError(f"--{name}: {error}", EXIT_USAGE) from error
    return join_filters(*parts.values())


def chosen_theme(saved: str, given: dict[str, str], environment: Mapping[str, str]) -> str:
    """Returns the initial theme. Options override NO_COLOR, which overrides the theme `saved`.

    `auto` becomes light if COLORFGBG shows a light background, else dark.
    """
    color = word_option(given, "color", COLORS, None)
    if color == "never" or (color is None and "theme" not in given and environment.get("NO_COLOR")):
        return "mono"
    if saved != "auto":
        return saved
    # rxvt and some other terminals set COLORFGBG to the text and background colour, such as "15;0".
    ground = environment.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if ground in ("7", "15") else "dark"


def chosen_glyphs(*, is_ascii: bool) -> Glyphs:
    """Returns the glyphs for the terminal and its locale; only ASCII characters with `is_ascii`."""
    from neurontools.views.drawing.glyphs import glyphs_for

    return glyphs_for(is_ascii=is_ascii or not locale_is_utf8(), terminal=os.environ.get("TERM", ""))


def is_terminal() -> bool:
    """Returns whether standard input and output are a terminal that can show a dashboard."""
    return os.isatty(0) and os.isatty(1) and os.environ.get("TERM", "") not in ("", "dumb")
