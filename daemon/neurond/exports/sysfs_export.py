"""Keeps a copy of the driver's sysfs tree up to date with the snapshots, in a thread."""

from __future__ import annotations

import logging
import threading

from neurontools.driver.tree_export import ExportedTree
from neurontools.model import Snapshot

_END_SECONDS = 5.0

_log = logging.getLogger(__name__)


class SysfsExporter:
    """Writes the submitted snapshots to a copy of the driver's tree, in a thread.

    If several snapshots come during a write, only the latest of them is written. Raises UserError if the directory
    can't be used.
    """

    def __init__(self, directory: str, first: Snapshot, driver_version: str) -> None:
        self._tree = ExportedTree(directory, first, driver_version)
        self._latest: Snapshot | None = None
        self._is_ending = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._follow, name="sysfs-export", daemon=True)
        self._thread.start()

    def submit(self, snapshot: Snapshot) -> None:
        with self._changed:
            self._latest = snapshot
            self._changed.notify()

    def close(self) -> None:
        """Ends the thread and removes the tree."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(_END_SECONDS)
        self._tree.close()

    def _follow(self) -> None:
        failed = False
        while True:
            with self._changed:
                while self._latest is None and not self._is_ending:
                    self._changed.wait()
                if self._is_ending:
                    return
                snapshot, self._latest = self._latest, None
            if snapshot is None:
                continue
            try:
                self._tree.update(snapshot)
                failed = False
            except OSError as error:
                if not failed:  # a full disk fails at every tick; log only the first failure
                    _log.warning("the tree in %s can't be written: %s", self._tree.directory, error.strerror)
                failed = True
