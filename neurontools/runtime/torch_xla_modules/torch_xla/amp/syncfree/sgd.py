"""torch_xla.amp.syncfree.sgd."""

from __future__ import annotations

from . import SGD as SGD
