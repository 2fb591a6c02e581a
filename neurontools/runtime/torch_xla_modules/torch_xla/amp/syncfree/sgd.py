"""torch_xla.amp.syncfree.sgd: the class SGD under its second import path."""

from __future__ import annotations

from . import SGD as SGD
