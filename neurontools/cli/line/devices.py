"""The devices that an option names: indices, ranges and PCI addresses."""

from neurontools.util.errors import EXIT_USAGE, UserError

HIGHEST_INDEX = 1023  # far above any host; bounds what a typing error can ask for
_HEXADECIMAL = frozenset("0123456789abcdef")
_BDF_PARTS = ((4, 8), (2, 2), (2, 2), (1, 1))  # fewest and most digits of domain, bus, device, function


class DeviceSelection:
    """The devices that --device asks for: indices, and PCI addresses in the kernel's form, `0000:10:1c.0`."""

    __slots__ = ("bdfs", "indices")

    def __init__(self, text: str) -> None:
        self.indices: list[int] = []
        self.bdfs: list[str] = []
        for part in text.split(",") if text else ():
            entry = part.strip()
            bdf = _bdf(entry)
            if bdf:
                self.bdfs.append(bdf)
            else:
                self.indices += _range(entry)


def _range(entry: str) -> list[int]:
    low, dash, high = (piece.strip() for piece in entry.partition("-"))
    if not (_is_index(low) and (_is_index(high) if dash else True)):
        from neurontools.util.terminal import error_excerpt

        shown = error_excerpt(entry)
        raise UserError(
            f"--device: {shown} is no device; give indices, ranges or PCI addresses such as 0,2-3 or 0000:10:1c.0",
            EXIT_USAGE,
        )
    first, last = int(low), int(high if dash else low)
    if last < first:
        raise UserError(f"--device: the range {first}-{last} runs backwards; write {last}-{first}", EXIT_USAGE)
    return list(range(first, last + 1))


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= HIGHEST_INDEX


def _bdf(entry: str) -> str | None:
    """A PCI address in the kernel's form, `10:1c.0` with domain 0; None for anything else."""
    parts = entry.lower().replace(".", ":").split(":")
    if len(parts) == 3:
        parts.insert(0, "0000")
    if len(parts) != 4 or entry.count(".") != 1 or entry.rfind(":") > entry.find("."):
        return None
    for part, (fewest, most) in zip(parts, _BDF_PARTS, strict=True):
        if not fewest <= len(part) <= most or not _HEXADECIMAL.issuperset(part):
            return None
    return "{}:{}:{}.{}".format(*parts)
