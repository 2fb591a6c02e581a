"""What each key of a session changes on the screen: of one host, and of many hosts."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from neurontools.fleet.summary import SummaryJob
from neurontools.model import Severity
from neurontools.tui.dashboard import Dashboard
from neurontools.tui.fleet import FleetDashboard
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.glyphs import UNICODE
from tests.harness.faulty_host import faulty_host
from tests.harness.fleet import StillHosts, live, lost
from tests.harness.pictures import is_as_stored, screen_rows, without_version
from tests.harness.pressed_keys import named
from tests.harness.scenario_host import ScenarioHost
from tests.harness.snapshots import snapshot_of
from tests.harness.still_feed import StillFeed

GOLDEN = Path(__file__).parent / "golden/sessions.txt"
SIZE = (80, 13)
HOST_SESSIONS = (  # each begins anew; what follows ' is typed
    "f M v v v",
    "F down down right G g pagedown pageup F enter down enter escape left left right K enter escape E P",
    "x down enter down right left left x x",
    "2 d a a t right down c enter right left l m down pagedown enter 1",
    "w x s down enter s space escape > < I space space U K down enter down enter Y down enter escape K escape",
    "w / 'tag~3 backspace down enter escape / 'colour=red escape \\ 'rank down up enter n N escape \\ 'nobody enter n",
    "O enter space > < 0 escape down enter space right escape down down enter end enter",
    "O end enter down enter up enter end enter up up enter space o 0 escape escape",
    "e down enter [ ] { } p n N L u H tab shift+tab ? ? ? q escape + -",
    "s j j k pagedown pageup end up home escape ? enter ? f1",
)
HOSTS_SESSIONS = (
    "down down up j k end home pagedown pageup g s s s s s ? enter q",
    "b b enter down enter up enter b b b b / 'ad backspace x escape / 'gone enter escape f12 q",
)


@pytest.fixture(autouse=True)
def _fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    monkeypatch.setattr(time, "time", lambda: 1.7e9)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


class Session:
    """Collects the screens after each key. A row that an earlier screen had is only named by its number."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._numbers: dict[str, int] = {}

    def type_keys(self, dashboard: Dashboard | FleetDashboard, keys: str) -> None:
        before = [""] * SIZE[1]
        for key in ("start", *keys.split()):
            typed = [key] if key[0] != "'" else list(key[1:])
            is_used = key == "start" or all(dashboard.press(*named(each)) for each in typed)
            rows = screen_rows(dashboard.draw(*SIZE))
            changed = [(at, row) for at, row in enumerate(rows) if row != before[at]]
            known = [f"{at}=#{self._numbers[row]}" for at, row in changed if row in self._numbers]
            self.lines.append(" ".join((key, *([] if is_used else ["is not used"]), *known)))
            for at, row in changed:
                if row not in self._numbers:
                    self._numbers[row] = len(self._numbers)
                    self.lines.append(f"  {at}=#{self._numbers[row]} {row}")
            before = rows


def test_each_key_changes_the_screen_as_stored() -> None:
    host = ScenarioHost("trn1.32xlarge", "steady", neuroncores=8)
    moments = [*(host.at(float(second)) for second in range(20, 30)), faulty_host()]
    session = Session()
    for keys in HOST_SESSIONS:
        session.type_keys(Dashboard(StillFeed(moments), DashboardSettings(), UNICODE), keys)
    busy = moments[0]
    job = SummaryJob("slow", 4, 2, 8, 0.5, 2.5, 0.31, Severity.WARNING, "run", (0, 1, 8), users=("ada",), user_count=1)
    states = (
        *(live(name, snapshot_of("trn1.2xlarge"), further_users=(), user_count=0) for name in ("idle", "spare")),
        live("busy", busy, jobs=(job,), job_count=1, further_users=(), user_count=1),
        lost("gone", "no route"),
    )
    feed = StillHosts(*(replace(state, received_at_seconds=None) for state in states))
    for keys in HOSTS_SESSIONS:
        fleet = FleetDashboard(feed, UNICODE, message="welcome")
        left: list[str | None] = []
        fleet.leave = left.append
        session.type_keys(fleet, keys)
        session.lines.append(f"opens {left}")
    shown = "\n".join(session.lines) + "\n"
    assert is_as_stored(without_version(shown), GOLDEN), "sessions.txt differs; UPDATE_GOLDEN=1 writes it anew"
