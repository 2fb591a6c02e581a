"""Open monitoring tools for AWS Trainium and Inferentia. docs/python.md has the public Python API."""

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from neurontools.util.version import __version__ as __version__
else:

    def __getattr__(name: str) -> str:
        """Imports `__version__` on first access, because every command imports this package."""
        if name == "__version__":
            from neurontools.util.version import __version__

            return __version__
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
