"""Servers of Debian with the API of Prometheus, on ports of their own: Prometheus and VictoriaMetrics."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness.ports import free_port
from tests.harness.waiting import HANG_SECONDS, wait_until

RULES = Path(__file__).parents[2] / "deploy/prometheus/neuron.rules.yml"

needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
needs_victoria_metrics = pytest.mark.skipif(
    shutil.which("victoria-metrics") is None, reason="victoria-metrics is not installed"
)


class Prometheus:
    """A context with a Prometheus that scrapes one target, or those of `file_sd`; `rules` has it record ours.

    A scrape may take as long as the interval is: one that fails leaves no series and an alert behind.
    """

    def __init__(
        self,
        directory: Path,
        target: str | None = None,
        *,
        file_sd: Path | None = None,
        rules: bool = True,
        flags: Sequence[str] = (),
        interval: str = "2s",
        scrape: Mapping[str, object] | None = None,
    ) -> None:
        self.port = free_port()
        targets: dict[str, object] = {"static_configs": [{"targets": [target] if target else []}]}
        if file_sd is not None:
            targets = {"file_sd_configs": [{"files": [str(file_sd)]}]}
        configuration: dict[str, Any] = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval},
            "scrape_configs": [{"job_name": "neurond", **targets, **(scrape or {})}],
        }
        if rules:
            configuration |= {"rule_files": [str(RULES)]}
            configuration["global"] |= {"evaluation_interval": "300ms"}
        file = directory / f"{self.program}.yml"
        file.write_text(json.dumps(configuration), "utf-8")
        self.log_path = directory / f"{self.program}.log"
        with self.log_path.open("wb") as log:
            command = [self.program, *self._options(file, directory), *flags]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    program = "prometheus"

    def _options(self, configuration: Path, directory: Path) -> list[str]:
        return [
            f"--config.file={configuration}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(HANG_SECONDS)

    def get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=HANG_SECONDS) as reply:
                return json.loads(reply.read())["data"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 503:  # it is still starting
                    return None
                raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None
        except OSError:
            assert self.process.poll() is None, self.log_path.read_text("utf-8")
            return None

    def query(self, text: str) -> list[Any]:
        found = self.get("query", query=text)
        return found["result"] if found else []

    def answer(self, query: str, *, over_time: bool = False) -> list[Any]:
        """The series of a query, once there are any: a scrape that took a busy machine too long leaves none."""
        ask = self.query_range if over_time else self.query
        return wait_until(lambda: ask(query) or None)

    def last_errors(self) -> list[str]:
        """Why the latest scrape of each target failed, "" where it did not."""
        return [target["lastError"] for target in self.get("targets")["activeTargets"]]

    def query_range(self, text: str) -> list[Any]:
        """The last minutes, as a panel that is drawn over time asks for them."""
        now = time.time()
        found = self.get("query_range", query=text, start=str(now - 300), end=str(now), step="1")
        return found["result"] if found else []


class VictoriaMetrics(Prometheus):
    """A VictoriaMetrics that scrapes in place of a Prometheus; it has no rules."""

    program = "victoria-metrics"

    def __init__(self, directory: Path, *, file_sd: Path, interval: str = "2s") -> None:
        super().__init__(directory, file_sd=file_sd, rules=False, interval=interval)

    def _options(self, configuration: Path, directory: Path) -> list[str]:
        return [
            f"-promscrape.config={configuration}",
            f"-storageDataPath={directory / 'victoria'}",
            f"-httpListenAddr=127.0.0.1:{self.port}",
        ]
