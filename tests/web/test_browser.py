"""The pages in a real browser: Debian's Chromium without a window, before a real daemon."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from neurontools.views.screen import PAGES
from tests.harness import chromium
from tests.harness.answering_server import Reply, answering
from tests.harness.attached_child import TAG
from tests.harness.attached_process import AttachedProcess
from tests.harness.paths import ROOT
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.secret_file import TOKEN, write_secret
from tests.harness.waiting import wait_until
from tests.harness.web_site import Serve, Site

pytestmark = pytest.mark.skipif(chromium.PROGRAM is None, reason="chromium is not installed")

NASTY = "<img src=x onerror=document.title='owned'>"


@pytest.fixture
def flags(port: int, tmp_path: Path) -> tuple[str, ...]:
    file = tmp_path / "neurond.toml"
    file.write_text(f'[metrics]\nlisten = "127.0.0.1:{port}"\n[web]\nenabled = true\n')
    return "--simulate", "trn1.2xlarge", "--interval", "0.05", "--config", str(file)


@pytest.fixture
def daemon(start_daemon: StartDaemon, flags: tuple[str, ...]) -> RunningDaemon:
    return start_daemon(*flags)


def address(port: int, page: str = "overview", more: str = "") -> str:
    return f"http://127.0.0.1:{port}/top/{page}{more}"


def text(browser: chromium.Chromium, selector: str = "#page") -> str:
    return str(browser.value(f"document.querySelector({json.dumps(selector)}).textContent"))


def goes_on(browser: chromium.Chromium, before: str | None = None) -> None:
    """Waits until the clock shows another time."""
    first = text(browser, "time") if before is None else before
    wait_until(lambda: text(browser, "time") != first)


def test_a_page_lives_and_breaks_no_rule(browser: chromium.Chromium, daemon: RunningDaemon, port: int) -> None:
    browser.load(address(port))
    assert "Free NeuronCores" in text(browser)
    goes_on(browser)
    assert browser.value("performance.getEntriesByType('navigation').length") == 1
    assert browser.problems == []
    own = f"http://127.0.0.1:{port}/top/"
    assert [asked for asked in browser.requested if not asked.startswith((own, "data:", "about:"))] == []


AXE = ROOT / ".venv/axe/node_modules/axe-core/axe.min.js"
VIOLATIONS = "axe.run(document).then(found => found.violations.map(each => each.id + ': ' + each.nodes[0].html))"
SMALL = """
[...document.querySelectorAll("main a, nav a, button, input, summary")]
  .filter(each => each.getClientRects().length)
  .filter(each => Math.min(each.getBoundingClientRect().width, each.getBoundingClientRect().height) < 39.5)
  .concat([...document.querySelectorAll("body *")]
    .filter(each => [...each.childNodes].some(child => child.nodeType === 3 && child.data.trim()))
    .filter(each => each.getClientRects().length && parseFloat(getComputedStyle(each).fontSize) < 14))
  .map(each => each.outerHTML)
"""


@pytest.mark.slow
@pytest.mark.skipif(not AXE.exists(), reason="make viewers has not installed axe-core")
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (390, "light"), (1400, "light"), (1400, "dark")])
def test_pages_are_accessible_and_fit_a_phone(
    browser: chromium.Chromium, start_daemon: StartDaemon, serve: Serve, tmp_path: Path, width: int, scheme: str
) -> None:
    """The page of many hosts, every page of one host, and the details of a process, a device, a core and a job."""
    daemon = start_daemon("--load", "ecc-burst", "--simulate", "trn1.2xlarge", "--interval", "1")
    (tmp_path / "hosts").write_text(f"node unix:{daemon.socket}\ngone unix:{tmp_path}/nobody.sock\n")
    site = serve("--hostfile", str(tmp_path / "hosts"))
    wait_until(lambda: ">1 live<" in (found := site.ask("/top/hosts")[2]) and ">1 lost<" in found)
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 640)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    pid = daemon.snapshot().processes[0].pid
    details = (f"processes?details={pid}", "history?device=0&core=0", "overview?tree=1", "processes?filter=util<0")
    hosts = ("hosts", "hosts?group=type", "hosts?filter=nothing")
    for page in (*hosts, *(f"host/node/{each}" for each in (*(page.name for page in PAGES), *details))):
        browser.load(f"http://127.0.0.1:{site.port}/top/{page}")
        browser.value(f"{AXE.read_text()}; 0")
        assert browser.value(VIOLATIONS) == [], page
        assert browser.value("document.documentElement.scrollWidth") <= width, page
        if width < 640:
            assert browser.value(SMALL) == [], page


HOSTILE = """
(async () => {
  const found = {};
  const loaded = (element, name) => new Promise(done => {
    element.onload = () => done("loaded");
    element.onerror = () => done("refused");
    Object.assign(element, name);
    document.body.append(element);
  });
  for (const path of ["/metrics", "/top/overview", "/top/script.js", "/top/session"]) {
    const place = "http://127.0.0.1:PORT" + path;
    const answer = await fetch(place, {mode: "no-cors"}).then(reply => reply.text(), () => "");
    found[path] = [
      await fetch(place).then(() => "read", () => "refused"),
      await fetch(place, {credentials: "include"}).then(() => "read", () => "refused"),
      answer === "" ? "refused" : "read",
      await loaded(document.createElement("script"), {src: place}),
      await loaded(document.createElement("img"), {src: place}),
    ];
  }
  return found;
})()
"""


@pytest.mark.slow
def test_a_page_of_another_site_reads_nothing(browser: chromium.Chromium, daemon: RunningDaemon, port: int) -> None:
    with answering(lambda _: Reply(b"<body>hostile</body>", headers={"Content-Type": "text/html"})) as (url, _):
        browser.load(f"http://hostile.test:{url.rpartition(':')[2]}/")
        found = browser.value(HOSTILE.replace("PORT", str(port)))
    assert found == dict.fromkeys(("/metrics", "/top/overview", "/top/script.js", "/top/session"), ["refused"] * 5)
    for path in ("/metrics", "/top/overview"):  # the hostile name now leads to the daemon: DNS rebinding
        browser.load(f"http://hostile.test:{port}{path}")
        assert browser.value("document.body.textContent").startswith(f"not for 'hostile.test:{port}'")
        assert browser.value(f"fetch('{path}').then(reply => reply.status)") == 421


@pytest.mark.slow
def test_a_process_that_is_called_like_a_tag_is_text(
    browser: chromium.Chromium, daemon: RunningDaemon, port: int
) -> None:
    with AttachedProcess(daemon, "1", str(os.getuid()), NASTY, environment={TAG: NASTY}) as child:
        wait_until(lambda: daemon.find(child.pid))
        for page, more in (("processes", ""), ("processes", f"?details={child.pid}"), ("overview", "")):
            browser.load(address(port, page, more))
            assert NASTY[:9] in text(browser)
            goes_on(browser)
            assert NASTY[:9] in text(browser)
            assert browser.value("document.querySelectorAll('img').length") == 0
            assert "owned" not in browser.value("document.title")
        assert browser.problems == []


@pytest.mark.slow
def test_what_the_stream_makes_is_what_the_page_is(
    browser: chromium.Chromium, start_daemon: StartDaemon, flags: tuple[str, ...], port: int
) -> None:
    start_daemon(*("3600" if flag == "0.05" else flag for flag in flags), "--load", "steady")
    site = Site(port)
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=FORGETFUL)
    for page in (
        "overview?tree=1",
        "processes",
        "topology",
        "history",
        "heatmap",
        "health",
        "usage",
        "host",
    ):
        wait_until(lambda: "loading history" not in site.ask(f"/top/{page}")[2])  # noqa: B023
        browser.load(address(port, page))
        wait_until(lambda: browser.value("window.streamed !== undefined"))
        sent, streamed = browser.value("[sent, streamed]")
        assert len(sent) > 500
        assert streamed == sent


FORGETFUL = """
window.EventSource = class extends EventSource {
  constructor(address) {
    const page = document.getElementById("page");
    window.sent = page.innerHTML;
    address.searchParams.set("since", "nothing");
    super(address);
    this.addEventListener("changes", () => setTimeout(() => { window.streamed = page.innerHTML; }));
  }
};
"""


@pytest.mark.slow
def test_the_page_says_when_the_daemon_is_gone_and_goes_on_when_it_is_back(
    browser: chromium.Chromium, daemon: RunningDaemon, start_daemon: StartDaemon, flags: tuple[str, ...], port: int
) -> None:
    browser.load(address(port))
    goes_on(browser)
    assert text(browser, "#state") == ""
    daemon.stop()
    lost = wait_until(lambda: text(browser, "#state"))
    assert lost.startswith("LOST since ")
    assert "s old; trying again" in lost
    gone = text(browser, "time")
    assert "Free NeuronCores" in text(browser), "what was known stays"
    start_daemon(*flags, name="second.sock")
    wait_until(lambda: text(browser, "#state") == "")
    goes_on(browser, gone)
    assert browser.value("performance.getEntriesByType('navigation').length") == 1


@pytest.mark.slow
def test_keys_lead_to_pages_and_the_pointer_shows_values(
    browser: chromium.Chromium, daemon: RunningDaemon, port: int
) -> None:
    def press(key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key=key, text=key if kind == "keyDown" else "")

    browser.load(address(port, "overview", "?window=60"))
    wait_until(lambda: browser.value("(document.querySelector('svg[data-values]') || {dataset: {}}).dataset.values"))
    x, y = browser.value(
        "(() => { const svg = document.querySelector('svg[data-values]'); svg.scrollIntoView({block: 'center'}); "
        "const box = svg.getBoundingClientRect(); return [box.right - 2, box.top + box.height / 2]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    wait_until(lambda: text(browser, "output").count(":") == 3)
    press("p")
    wait_until(lambda: text(browser, "#state").startswith("PAUSED"))
    press("t")
    wait_until(lambda: "/top/topology" in str(shown_address(browser)))
    wait_until(lambda: browser.value("document.querySelector('nav a[aria-current]')?.textContent") == "Topology")
    wait_until(lambda: browser.value("document.readyState") == "complete")  # its script reads keys from then on
    press("w")
    wait_until(lambda: browser.value("document.querySelector('input[type=search]') !== null"))
    wait_until(lambda: browser.value("document.readyState") == "complete")
    press("/")
    press("x")
    assert browser.value("document.querySelector('input[type=search]').value") == "x"


def shown_address(browser: chromium.Chromium) -> str | None:
    told = browser.tried("Page.getNavigationHistory")
    return str(told["entries"][told["currentIndex"]]["url"]) if told else None


@pytest.mark.slow
def test_a_token_leaves_no_trace_in_addresses(
    browser: chromium.Chromium, start_daemon: StartDaemon, tmp_path: Path, port: int
) -> None:
    token, file = write_secret(tmp_path / "token"), tmp_path / "with-token.toml"
    file.write_text(f'[metrics]\nlisten = "127.0.0.1:{port}"\nbearer_token_file = "{token}"\n[web]\nenabled = true\n')
    start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05", "--config", str(file))
    browser.call("Page.navigate", url=f"{address(port)}#{TOKEN}")
    wait_until(lambda: "Utilization" in content(browser))
    told = browser.call("Page.getNavigationHistory")
    assert not [entry["url"] for entry in told["entries"] if TOKEN in entry["url"]]
    assert not [asked for asked in browser.requested if TOKEN in asked.partition("#")[0]]
    assert TOKEN not in browser.value("document.cookie + document.referrer + location.href")
    goes_on(browser)  # the stream has the cookie too
    assert [problem for problem in browser.problems if "401" not in problem] == []


def content(browser: chromium.Chromium) -> str:
    """The text of whatever page there is, also while it is being left for another."""
    told = browser.tried("DOM.getDocument", depth=0)
    found = told and browser.tried("DOM.getOuterHTML", nodeId=told["root"]["nodeId"])
    return str(found["outerHTML"]) if found else ""


@pytest.mark.slow
def test_who_is_one_too_many_is_told_so(browser: chromium.Chromium, daemon: RunningDaemon, port: int) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(32):
            stack.enter_context(Site(port, client=f"127.0.1.{1 + number // 8}").stream())()
        browser.load(address(port))
        assert "Free NeuronCores" in text(browser), "the page as it stands"
        wait_until(lambda: text(browser, "#state").startswith("too many viewers"))
        assert "LOST" not in text(browser, "#state")
    before = text(browser, "time")
    wait_until(lambda: text(browser, "#state") == "" and text(browser, "time") != before)


@pytest.mark.slow
def test_a_tab_that_nobody_sees_gives_its_connection_back(
    browser: chromium.Chromium, daemon: RunningDaemon, port: int
) -> None:
    browser.load(address(port))
    goes_on(browser)
    browser.value(HIDE)
    gone = text(browser, "time")
    site = Site(port)
    with site.stream() as event:
        for _ in range(3):
            event()
    assert text(browser, "time") == gone
    browser.value("isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
    goes_on(browser, gone)
    assert text(browser, "#state") == ""


HIDE = """
isHidden = true;
Object.defineProperty(document, "hidden", {get: () => isHidden, configurable: true});
document.dispatchEvent(new Event("visibilitychange"));
"""


@pytest.mark.slow
def test_without_a_script_the_page_is_whole_and_comes_again(
    browser: chromium.Chromium, daemon: RunningDaemon, port: int
) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.call("Page.navigate", url=address(port))
    wait_until(lambda: "Free NeuronCores" in content(browser))
    assert 'http-equiv="refresh"' in content(browser)
