"""Debian's Chromium without a window, spoken to by its debugging pipe: pages are loaded, asked and pictured."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from tests.harness.waiting import is_readable

PROGRAM = shutil.which("chromium")
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
    "--host-resolver-rules=MAP *.test 127.0.0.1",  # names of hostile sites
)


class Chromium:
    """One page. `problems` are errors and warnings that it told, `requested` all addresses that it asked for."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._unread = b""
        self._last_id = 0
        self._session = ""
        self._context: str | None = None
        self.new_page()

    def new_page(self) -> None:
        """Leaves the page for an empty one that shares no cookies with it."""
        self._session = ""  # so that nothing counts any more that the page which is left still tells
        self.problems: list[str] = []
        self.requested: list[str] = []
        context = self._call("Target.createBrowserContext", {"disposeOnDetach": True}, None)["browserContextId"]
        target = self._call("Target.createTarget", {"url": "about:blank", "browserContextId": context}, None)[
            "targetId"
        ]
        if self._context is not None:
            self._call("Target.disposeBrowserContext", {"browserContextId": self._context}, None)
        self._context = context
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True}, None)
        self._session = str(attached["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol; AssertionError when the browser refuses."""
        return self._call(method, parameters, self._session)

    def tried(self, method: str, **parameters: Any) -> dict[str, Any] | None:
        """The same; None when the browser refuses, as while a page is being left for another."""
        try:
            return self.call(method, **parameters)
        except AssertionError:
            return None

    def load(self, address: str) -> None:
        """Go to an address, and wait until the page and what it names are there."""
        self.call("Page.navigate", url=address)
        self.value("new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))")

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript has as its value, waited for where it is a promise."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def screenshot(self, width: int, height: int) -> bytes:
        """The page as PNG, in a window of this size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def _call(self, method: str, parameters: dict[str, Any], session: str | None) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._handle_event(answer)

    def _handle_event(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("sessionId") != self._session:
            return  # of a page that was left
        if event.get("method") == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"]["text"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:500])

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            assert is_readable(self._from), "the browser says nothing"
            part = os.read(self._from, 1 << 20)
            assert part, "the browser has ended"
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))


@contextlib.contextmanager
def chromium() -> Iterator[Chromium]:
    """A browser of its own, with a profile of its own that is gone with it."""
    assert PROGRAM is not None, "chromium is not installed"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, contextlib.ExitStack() as stack:
        commands, answers = os.pipe(), os.pipe()
        # The browser has its pipe at 3 and 4; a shell moves its ends there.
        moves = f'exec "$@" 3<&{commands[0]} 4>&{answers[1]}'
        browser = subprocess.Popen(
            ["bash", "-c", moves, "bash", PROGRAM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands[0], answers[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(browser.wait)
        stack.callback(browser.kill)
        os.close(commands[0])
        os.close(answers[1])
        stack.callback(os.close, commands[1])
        stack.callback(os.close, answers[0])
        yield Chromium(commands[1], answers[0])
