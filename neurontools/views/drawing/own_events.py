"""Which events a tab is about: those of a process, and of the devices that it holds."""

from __future__ import annotations

from neurontools.client.history.events import Event
from neurontools.views.drawing.scene import Scene


def devices_of(scene: Scene, pid: int | None) -> set[int] | None:
    """The devices of a process; None, all of them, where none is chosen."""
    if pid is None:
        return None
    return {device for figures in scene.figures.shown(pid) for device in figures.process.device_indices}


def events_of(scene: Scene, pid: int | None) -> tuple[Event, ...]:
    """What has happened to a process and to its devices; all for None."""
    devices = devices_of(scene, pid)
    if devices is None:
        return scene.events
    return tuple(
        event for event in scene.events if (event.device_index in devices if event.pid is None else event.pid == pid)
    )
