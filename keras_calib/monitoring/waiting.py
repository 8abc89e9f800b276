"""Answers that wait for their labels, in bounded memory."""

import hashlib
import itertools
import numbers
from collections import Counter
from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.files import Stored
from keras_calib.inputs.groups import as_groups, names_of

# Ids that an error shows.
_SHOWN = 3


class Waiting:
    """Confidence and acceptance of answers, by a hash of their ids.

    The oldest of `most` give way to new ones. An answer that got its label
    stays among them, so that a second label is seen.
    """

    def __init__(self, most: int):
        self._most = most
        # By hash, oldest first: the confidence of an accepted answer, less the
        # confidence of a rejected one, NaN of one that has its label.
        self._answers: dict[int, float] = {}
        # Answers that wait, and that gave way before their labels came.
        self._count = 0
        self.num_expired = 0

    def __len__(self) -> int:
        return self._count

    def check_new(self, ids: Any, count: int) -> list[int]:
        """Hashes of the ids of new answers; raises if one came before."""
        names, hashes = _read(ids, count)
        first: dict[int, int] = {}
        again = [
            name
            for place, (name, key) in enumerate(zip(names, hashes, strict=True))
            if key in self._answers or first.setdefault(key, place) != place
        ]
        if again:
            raise value_error(
                "`ids` must be new: give each answer once",
                repeated=again[:_SHOWN],
                count=len(again),
            )
        return hashes

    def add(
        self, hashes: list[int], confidence: np.ndarray, accepted: np.ndarray
    ) -> None:
        """Adds answers; NaN as the confidence of those that have a label."""
        values = np.where(accepted, confidence, -confidence)
        self._answers.update(zip(hashes, values.tolist(), strict=True))
        self._count += int(np.sum(~np.isnan(values)))
        self._expire()

    def merge(self, others: Sequence["Waiting"]) -> None:
        """Takes the answers of others, of which none may wait in one and be
        known to another. Each loses its oldest where there are too many.
        """
        every = [item for x in others for item in x._answers.items()]
        times = Counter(key for key, _ in every)
        shared = {key for key, x in every if x == x and times[key] > 1}
        if shared:
            raise value_error(
                "`monitors` must not share the id of an answer that waits for "
                "its label: make ids unique over all monitors, such as by the "
                "server's name before them, or merge when the labels are in",
                shared=len(shared),
                waiting=sum(map(len, others)),
            )
        newest = [reversed(x._answers.items()) for x in others]
        found: dict[int, float] = {}
        for row in itertools.zip_longest(*newest):
            found.update(filter(None, row))
        self._answers = dict(reversed(found.items()))
        self.num_expired += sum(other.num_expired for other in others)
        self._recount()
        self._expire()

    def find(
        self, ids: Any, count: int, skip: bool
    ) -> tuple[list[int], np.ndarray, int]:
        """Hashes and values `(n,)` of the answers that labels are for.

        With `skip`, values of labels without an answer are NaN, and their
        number comes last; without it they raise ValueError.
        """
        names, hashes = _read(ids, count)
        found = np.array([self._answers.get(key, np.inf) for key in hashes])
        twice = [n for n, x in zip(names, found, strict=True) if np.isnan(x)]
        first: dict[int, int] = {}
        for place, key in enumerate(hashes):
            again = first.setdefault(key, place) != place
            if again and not np.isnan(found[place]):
                twice.append(names[place])
                found[place] = np.nan
        unknown = [n for n, x in zip(names, found, strict=True) if np.isinf(x)]
        if twice and not skip:
            raise value_error(
                '`ids` must have one label each; `unknown="skip"` keeps the '
                "first and counts the others",
                repeated=twice[:_SHOWN],
                count=len(twice),
            )
        if unknown and not skip:
            raise value_error(
                "`ids` must be of answers that wait for a label; "
                '`unknown="skip"` leaves out and counts the others',
                unknown=unknown[:_SHOWN],
                count=len(unknown),
                waiting=len(self),
                expired=self.num_expired,
            )
        found[np.isinf(found)] = np.nan
        return hashes, found, len(twice) + len(unknown)

    def take(self, hashes: list[int], found: np.ndarray) -> None:
        """Notes that answers have their labels."""
        for key, value in zip(hashes, found, strict=True):
            if not np.isnan(value):
                self._answers[key] = np.nan
                self._count -= 1

    def state_dict(self) -> dict[str, Any]:
        """The answers as arrays."""
        return {
            "hashes": np.array([*self._answers], "uint64"),
            "answers": np.array([*self._answers.values()], "float64"),
            "num_expired": self.num_expired,
        }

    def stored(self) -> dict[str, Stored]:
        """What the arrays of a state must be, by name."""
        return {
            "hashes": Stored("u", (-self._most,)),
            "answers": Stored("f", (-self._most,), -1.0, 1.0, nan=True),
            "num_expired": Stored("iu", (), 0, 2**62),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces the answers."""
        hashes, answers = (state[x].tolist() for x in ("hashes", "answers"))
        if len({*hashes}) != len(answers) or len(hashes) != len(answers):
            raise value_error(
                "`state` must have an answer for each id, and each id once",
                ids=len({*hashes}),
                answers=len(answers),
            )
        self._answers = dict(zip(hashes, answers, strict=True))
        self.num_expired = int(state["num_expired"])
        self._recount()

    def _recount(self) -> None:
        self._count = sum(x == x for x in self._answers.values())

    def _expire(self) -> None:
        over = max(len(self._answers) - self._most, 0)
        for key in list(itertools.islice(self._answers, over)):
            expired = not np.isnan(self._answers.pop(key))
            self.num_expired += expired
            self._count -= expired


def _read(ids: Any, count: int) -> tuple[list[str], list[int]]:
    """Ids as texts, and their hashes."""
    # A set has no order.
    if isinstance(ids, str | bytes | set) or not isinstance(ids, Iterable):
        ids = [ids]
    if hasattr(ids, "shape"):
        ids = as_groups(ids).reshape(-1).tolist()
    for kind in {*map(type, ids := [*ids])}:
        if not issubclass(kind, str | bytes | numbers.Real | NoneType):
            raise type_error(
                "`ids` must be texts or whole numbers: make a text of each",
                type=kind.__name__,
            )
    names = names_of(ids, "ids")
    if len(names) != count:
        raise value_error(
            "`ids` must have one id for each answer",
            ids=len(names),
            answers=count,
        )
    return names, [
        int.from_bytes(hashlib.blake2b(x.encode(), digest_size=8).digest())
        for x in names
    ]
