"""Which public names the frozen results visit, and which they do not."""

from battery import NAMES
from frozen.api import USED

__all__ = ["NOT_FROZEN", "visited"]

NOT_FROZEN: dict[str, str] = {}


def visited() -> set[str]:
    """Public names that were used for frozen numbers."""
    return set(USED)
