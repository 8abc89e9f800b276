"""A public callable with arrays of a shape of its own, for the battery."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from odd_inputs import ODD_ARRAYS


@dataclass(frozen=True)
class Shaped:
    """One public callable, with arrays that it takes.

    Attributes:
        call: `call(**arrays)` to what it returns.
        arrays: Its arrays by name. A name with a dot, such as `y_pred.boxes`,
            is that of an entry of a dict.
        odd: What else is odd for an array, by its name and kind: a function
            of the array, or the value that takes its place.
        fine: Names and kinds, `"mask None"`, which are answers.
        nan: Whether NaN or infinity is an answer to itself.
        every: Only each `every`-th call is tried, of what reads its arrays
            where others do.
    """

    call: Callable
    arrays: dict
    odd: dict[str, dict[str, Any]] = field(default_factory=dict)
    fine: tuple[str, ...] = ()
    nan: bool = False
    every: int = 1

    def answers(self, kind: str, found: np.ndarray) -> bool:
        """Whether numbers that were found may answer this kind."""
        bad = not np.isfinite(found).all()
        return self.nan and bad and kind.endswith((" NaN", " infinite"))

    def calls(self) -> Iterator[tuple[str, dict]]:
        """Each odd call: its kind, and its arrays."""
        for name, array in self.arrays.items():
            known = ODD_ARRAYS if isinstance(array, np.ndarray) else {}
            for kind, change in {**known, **self.odd.get(name, {})}.items():
                if f"{name} {kind}" in self.fine:
                    continue
                given = change(array) if callable(change) else change
                yield f"{name} {kind}", {**self.arrays, name: given}
