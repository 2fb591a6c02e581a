"""torch_xla.amp.syncfree.adamw: the class AdamW under its second import path."""

from __future__ import annotations

from . import AdamW as AdamW
