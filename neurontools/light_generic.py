"""Generic classes without the import of typing, which one-shot commands can't afford."""

__all__ = ["Generic", "TypeVar"]

TYPE_CHECKING = False
if TYPE_CHECKING:
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
