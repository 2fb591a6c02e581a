"""Counts the blank lines of neuron-top's overview, for eight situations at four sizes of a terminal.

    python benchmarks/overview_screens.py [--text DIRECTORY]

A line is blank if it shows nothing but the frame of a panel. The hosts are simulated, and so is their clock, so each
run prints the same. `--text` also writes each screen to a file. Last come the lowest contrast ratios of each theme.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "daemon")]

from neurontools.fleet.jobs import fleet_jobs  # noqa: E402
from neurontools.fleet.states import worst_first  # noqa: E402
from neurontools.model import Finding, Health, Severity, Snapshot  # noqa: E402
from neurontools.model.finding import FindingKind  # noqa: E402
from neurontools.model.process import Job, TrainingCounters, TrainingRates  # noqa: E402
from neurontools.tui.dashboard import Dashboard  # noqa: E402
from neurontools.views.dashboard_settings import DashboardSettings  # noqa: E402
from neurontools.views.drawing.glyphs import UNICODE  # noqa: E402
from neurontools.views.drawing.lines import LOADS, THEMES, TextPage, plain_text  # noqa: E402
from neurontools.views.fleet_hosts import list_rows  # noqa: E402
from neurontools.views.fleet_page import FleetContext, fleet_page  # noqa: E402
from tests.harness.colours import DARK_BACKGROUND, LIGHT_BACKGROUND, contrast  # noqa: E402
from tests.harness.fleet import live  # noqa: E402
from tests.harness.scenario_host import ScenarioHost  # noqa: E402
from tests.harness.still_feed import StillFeed  # noqa: E402

SIZES = ((80, 24), (120, 36), (200, 50), (300, 80))
SECONDS = 120
FLEET_HOSTS = 60
Drawer = Callable[[int, int], TextPage]


def host(
    instance_type: str = "trn1.32xlarge",
    scenario: str = "steady",
    change: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
    *,
    lnc: int | None = None,
    neuroncores: int | None = None,
    keys: str = "",
) -> Drawer:
    """Returns a function that draws the screen of a simulated host after two minutes and some keys."""
    simulated = ScenarioHost(instance_type, scenario, lnc=lnc, neuroncores=neuroncores)
    snapshots = [change(simulated.at(float(second))) for second in range(1, SECONDS + 1)]
    dashboard = Dashboard(StillFeed(snapshots), DashboardSettings(), UNICODE)
    for key in keys:
        dashboard.press(key)
    return dashboard.draw


def with_straggler(snapshot: Snapshot) -> Snapshot:
    """Makes the processes ranks of one training, in which the others wait for rank 17."""
    steps = int(snapshot.taken_at_seconds * 2)
    processes = tuple(
        replace(
            process,
            job=Job("torchrun train_gpt.py", rank, len(snapshot.processes)),
            command="python train_gpt.py --layers 24",
            user="ada",
            reporting=True,
            synthetic=False,
            training=TrainingCounters(steps_total=steps, last_step_at_seconds=snapshot.taken_at_seconds - 0.4),
            training_rates=TrainingRates(steps_per_second=2.0),
        )
        for rank, process in enumerate(snapshot.processes)
    )
    pids = tuple(process.pid for process in processes)
    slow = Finding(
        FindingKind.SLOW_RANK,
        Severity.NOTICE,
        "the ranks of torchrun train_gpt.py wait for rank 17, which takes longer in input: without it each step would "
        "be at least 25% shorter",
        "Give rank 17 more DataLoader workers, or look at what else runs on its vCPUs.",
        snapshot.taken_at_unix_seconds - 90,
        processes[17].device_indices,
        pids[17],
        pids,
        part="input",
    )
    health = Health(tuple(range(len(snapshot.devices))), (), (slow,))
    return replace(snapshot, processes=processes, health=health, synthetic_load=None)


def one_by_one(snapshot: Snapshot) -> Snapshot:
    scripts = ("serve.py --model bert", "eval.py", "embed.py --batch 64", "train_small.py")
    processes = tuple(
        replace(process, job=None, command=f"python {scripts[number % 4]}", user=f"user{number % 5}", synthetic=False)
        for number, process in enumerate(snapshot.processes)
    )
    return replace(snapshot, processes=processes, synthetic_load=None)


def fleet() -> Drawer:
    hosts = [ScenarioHost("trn1.32xlarge", scenario) for scenario in ("steady", "idle", "ecc-burst")]
    kinds = [[simulated.at(seconds) for seconds in (29.0, 30.0)][-1] for simulated in hosts]
    states = [live(f"trn-{number:02}", kinds[number % 3]) for number in range(FLEET_HOSTS)]
    context = FleetContext(list_rows(states, worst_first), tuple(states), fleet_jobs(states), (), 100.0, 1.7e9, 1.0)
    return lambda width, height: fleet_page(context, width, height)


SCENES: dict[str, Callable[[], Drawer]] = {
    "idle": lambda: host(scenario="idle"),
    "small training": lambda: host(scenario="training-ramp", neuroncores=2),
    "straggler": lambda: host(change=with_straggler),
    "sick device": lambda: host(scenario="ecc-burst"),
    "128 cores": lambda: host("trn2.48xlarge", lnc=1),
    "many processes": lambda: host("trn2.48xlarge", change=one_by_one, lnc=2),
    "fleet of 60": fleet,
    "recording": lambda: host(scenario="stuck-core", neuroncores=20, keys="p{["),
}


def blank_lines(page: TextPage) -> int:
    return sum(not plain_text(line).strip(" │|") for line in page.lines)


def contrasts(theme_name: str) -> str:
    theme = THEMES[theme_name]
    background = DARK_BACKGROUND if theme.is_dark else LIGHT_BACKGROUND
    ratios = {
        style: contrast(color, background)
        for style in ("text", "dim", "label", "heading", "good", "warn", "bad", "held", *LOADS)
        if (color := theme.style(style).color) is not None
    }
    lowest = min(ratios, key=lambda style: ratios[style]) if ratios else ""
    return f"{lowest} {ratios[lowest]:.1f}" if ratios else "the terminal's own"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="directory for the screens as text")
    options = parser.parse_args()
    print(f"{'blank lines':16}" + "".join(f"{f'{width}x{height}':>10}" for width, height in SIZES))
    for name, make in SCENES.items():
        draw = make()
        pages = [draw(width, height) for width, height in SIZES]
        print(f"{name:16}" + "".join(f"{blank_lines(page):10}" for page in pages))
        for page, (width, height) in zip(pages, SIZES, strict=True) if options.text else ():
            options.text.mkdir(parents=True, exist_ok=True)
            text = "".join(f"{plain_text(line)}\n" for line in page.lines)
            (options.text / f"{name.replace(' ', '-')}-{width}x{height}.txt").write_text(text, encoding="utf-8")
    for theme_name in THEMES:
        print(f"lowest contrast of {theme_name}: {contrasts(theme_name)}")


if __name__ == "__main__":
    asyncio.run(main())
