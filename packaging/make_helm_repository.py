"""Writes a Helm repository of static files: the packed chart, the index, and with a key the chart's provenance.

    python packaging/make_helm_repository.py DIST

The times of the files are SOURCE_DATE_EPOCH, so the same source gives the same bytes. HELM_KEYRING is a file of secret
PGP keys, HELM_KEY the name of one of them; without both, there is no provenance. Helm's own library does the work.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import helm_python

CHART = Path(__file__).parents[1] / "deploy/kubernetes/chart"


def write_repository(dist: Path, unix_seconds: int) -> Path:
    """Packs the chart into a directory and writes its index; returns the path of the packed chart."""
    with tempfile.TemporaryDirectory() as work:
        chart = Path(work, "neurond")
        shutil.copytree(CHART, chart)
        for path in (chart, *chart.rglob("*")):
            os.utime(path, (unix_seconds, unix_seconds))
        dist.mkdir(exist_ok=True)
        packed = Path(helm_python.package(chart, destination=dist))
    helm_python.repo_index_generate(dist)
    index = dist / "index.yaml"
    time = datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    index.write_text(
        re.sub(r'(?m)^( *(?:created|generated): )".*"$', rf'\1"{time}"', index.read_text("utf-8")), "utf-8"
    )
    return packed


if __name__ == "__main__":
    archive = write_repository(Path(sys.argv[1]), int(os.environ["SOURCE_DATE_EPOCH"]))
    if os.environ.get("HELM_KEYRING"):
        helm_python.sign(archive, key=os.environ["HELM_KEY"], keyring=os.environ["HELM_KEYRING"])
