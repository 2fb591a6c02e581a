"""Generic classes without the import of typing, which one-shot commands can't afford.

Where typing is loaded anyway, these are its own, so that tools which look at types find everything.
"""

import sys

__all__ = ["Generic", "TypeVar"]

TYPE_CHECKING = False
if TYPE_CHECKING or "typing" in sys.modules:
    from typing import Generic, TypeVar
else:

    class Generic:
        """A base that takes a parameter and forgets it."""

        __slots__ = ()

        def __class_getitem__(cls, _: object) -> type:
            return cls

    def TypeVar(name: str) -> str:  # noqa: N802 - stands for typing's
        """A parameter of a generic class."""
        return name
