"""What a temperature needs of logits as wide as a vocabulary.

Derivation: docs/derivations.md, 'Compact logits'.
"""

import functools
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.files import Stored, reading_npz, replacing
from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.bins import BinSums, bin_index, bin_sums
from keras_calib.inputs.batch import Batch, standardize_logits
from keras_calib.inputs.checks import check_above, check_at_most, check_integer

_TOP = 32
# Logits, and kept rows, of a block.
_LOGITS, _ROWS = 2**18, 2**14
_TOLERANCE = 1e-10
# So many steps of Newton's method suggest that there is no optimum inside.
_NEWTON = 8
# Logits of a group, of which the largest is found first.
_GROUP = 64
# Stands for a logit of -inf.
_LOWEST = np.float32(-1e30)
# The range of b = 1/T in which sums are interpolated.
_RANGE = 0.25, 2.0
# Nodes are these and the sums of any two of them, times `_UNIT`.
_POWERS, _UNIT = (1, 2, 4, 8, 16, 20), _RANGE[1] / 40
# b of each node, ascending, and where `_products` has its sum.
_EXPONENTS, _PLACES = np.unique(
    np.add.outer((0, *_POWERS), _POWERS), return_index=True
)
_NODES = _UNIT * _EXPONENTS
# Entries of a part of the logits, whose powers stay in the cache of a core.
_CACHED = 24 * 1024
# Entries that are added in float32, before float64 takes over.
_ADDED = 1024
# Logits for which the weights of nodes are chosen, as multiples of one that
# counts: a logit at 0 beside `1 / _SHARE` others far below it.
_FARTHEST, _NUM_LOGITS, _SHARE = 600.0, 400, 5e-4
# Relative rounding error of a sum.
_ROUNDING = 3e-7
# Stands for an empty sum.
_NOTHING = 1e-300


class _Part(NamedTuple):
    """Tokens of one batch; logits are less the largest of their token."""

    top: np.ndarray  # float32 `(n, 32)`
    rest: np.ndarray  # float32 `(n, 21)`: at the nodes, less 1/T top.min()
    label: np.ndarray  # float32 `(n,)`: the logit of the label
    right: np.ndarray  # bool `(n,)`: whether the label is the prediction
    weight: np.ndarray  # float32 `(n,)`


class CompactLogits:
    """Logits of a vocabulary, shrunk to what temperature scaling needs.

    Use it to fit `TemperatureScaling` on the tokens of a language model, whose
    logits do not fit into memory. Add batches with `update`, merge parts with
    `merge`, then pass it to `TemperatureScaling.fit` in place of the labels.

    It keeps the 32 largest logits of each token, the logit of the label, and
    sum_k exp(z_k / T) of all others at 21 values of T: 221 bytes. It computes
    the sum at any T between 0.5 and 4 from them, to 1e-5 of the whole for
    whatever logits. Logits of -inf are classes that are ruled out.

    Args:
        The constructor takes none. Class ids `(n, ...)` and logits
        `(n, ..., num_classes)` are what `update` takes.

    Raises:
        ValueError: By `update`, for logits that are NaN or infinite. By `nll`
            and `ece`, for a T outside of [0.5, 4].

    Example:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(500, 1000))
    >>> labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=-1)
    >>> compact = CompactLogits().update(labels, 2.0 * logits)
    >>> len(compact)
    500

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        section 4.2, https://arxiv.org/abs/1706.04599
    """

    # What a calibrator asks of what it is fitted on.
    from_logits = True

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._num_classes: int | None = None

    def __len__(self) -> int:
        """Number of tokens."""
        return sum(len(part.label) for part in self._parts)

    def update(
        self,
        labels: Any,
        logits: Any,
        sample_weight: Any = None,
        *,
        ignore_class: int | None = None,
    ) -> Self:
        """Adds tokens and returns self.

        Args:
            labels: Class ids `(n, ...)`.
            logits: Logits `(n, ..., num_classes)` of more than 32 classes.
            sample_weight: Weights of the shape of the class ids, or `(n,)`;
                tokens of weight 0 are left out. None for 1.
            ignore_class: Class id of the tokens to leave out, such as -1.

        Raises:
            ValueError: If shapes do not fit, a logit is NaN or infinite, or
                the logit of a label is -inf.
        """
        read = standardize_logits(
            labels,
            logits,
            sample_weight=sample_weight,
            ignore_class=ignore_class,
            drop=False,
        )
        num_classes = read.outputs.shape[-1]
        known = self._num_classes or num_classes
        if read.labels.ndim != 1 or num_classes <= _TOP:
            raise value_error(
                f"`labels` must be class ids of more than {_TOP} classes; fit "
                "on the logits themselves otherwise",
                **{"logits.shape": read.outputs.shape},
            )
        if num_classes != known:
            raise value_error(
                "`logits` must have as many classes as before",
                before=known,
                now=num_classes,
            )
        count = len(read.labels)
        weight = np.ones(count) if read.weight is None else read.weight
        keep = weight > 0 if read.mask is None else read.mask & (weight > 0)
        places = np.flatnonzero(keep)
        # NumPy lets other threads run while it computes.
        with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as threads:
            found = list(
                threads.map(
                    lambda rows: _shrunk(read, rows, weight[rows]),
                    _row_blocks(places, num_classes),
                )
            )
        if found:
            # One part for a batch: passes over many small ones take longer.
            part = _Part(*map(np.concatenate, zip(*found, strict=True)))
            # A copy has the list too, so it is replaced and never changed.
            self._num_classes, self._parts = num_classes, [*self._parts, part]
        return self

    def merge(self, other: "CompactLogits") -> Self:
        """Adds the tokens of another one, such as another worker's."""
        if not isinstance(other, CompactLogits):
            raise type_error(
                "`other` must be `CompactLogits`", type=type(other).__name__
            )
        ours, theirs = self._num_classes, other._num_classes
        if None not in (ours, theirs) and ours != theirs:
            raise value_error(
                "`other` must have as many classes", before=ours, now=theirs
            )
        self._parts = [*self._parts, *other._parts]
        self._num_classes = ours or theirs
        return self

    def save(self, path: Any) -> None:
        """Writes all tokens to a file of NumPy, `.npz`."""
        self._check_not_empty()
        arrays = map(np.concatenate, zip(*self._parts, strict=True))
        named: dict[str, Any] = dict(
            zip(_stored(len(self)), arrays, strict=True)
        )
        named["num_classes"] = self._num_classes
        with replacing(path) as file:
            np.savez(file, **named)

    @classmethod
    def load(cls, path: Any) -> "CompactLogits":
        """Reads what `save` wrote; ValueError for anything else."""
        found = cls()
        rule = "`path` must name a file that `save` wrote"
        with reading_npz(path, rule) as file:
            size = file.read("num_classes", Stored("iu", (), _TOP + 1, 2**31))
            stored = _stored(file.form("label")[1][0])
            part = _Part(*(file.read(k, x) for k, x in stored.items()))
            # Logits are less the largest, and sums fall with 1/T.
            right = part.top.max(axis=-1) == 0.0
            right &= (part.label == 0.0) | ~part.right
            right &= (part.rest[:, 1:] <= 1e-3).all(axis=-1)
            if not right.all():
                raise ValueError("logits and sums must be those of tokens")
        found._parts, found._num_classes = [part], int(size)
        return found

    def nll(self, temperature: float = 1.0) -> float:
        """Mean negative log-likelihood in nats, at a T in [0.5, 4]."""
        beta = self._beta(temperature)
        loss, mass = 0.0, 0.0
        for part in self._blocks():
            value = _log_sum(part, beta)[0] - beta * part.label
            loss, mass = loss + part.weight @ value, mass + part.weight.sum()
        return float(loss / mass)

    def ece(self, temperature: float = 1.0, *, num_bins: int = 15) -> float:
        """Expected calibration error of the predicted token, at a T."""
        check_integer("num_bins", num_bins, 1)
        beta, found = self._beta(temperature), []
        for part in self._blocks():
            confidence = np.exp(-_log_sum(part, beta)[0])
            index = bin_index(confidence, num_bins)
            weight = part.weight.astype("float64")
            sums = bin_sums(confidence, part.right, index, num_bins, weight)
            found.append(sums.parts())
        total = (np.sum(parts, axis=0) for parts in zip(*found, strict=True))
        return float(calibration_error(BinSums(*total)))

    def optimal_temperature(self) -> float:
        """T of the least NLL, which `TemperatureScaling.fit` takes.

        Raises:
            ValueError: If it does not lie between 0.5 and 4.
        """
        self._check_not_empty()
        beta = least_by_newton(self._slopes, *_RANGE, 1.0, _TOLERANCE)
        if beta in _RANGE:
            raise value_error(
                "the optimal temperature must lie between 0.5 and 4, which is "
                "what compact logits hold; scale the logits by a known number "
                "first, or add tokens of which some are wrong",
                tokens=len(self),
                right=sum(int(part.right.sum()) for part in self._parts),
            )
        return float(1.0 / beta)

    def _slopes(self, beta: float) -> tuple[float, float]:
        """First and second derivative of the summed NLL by 1/T."""
        first = second = 0.0
        for part in self._blocks():
            _, mean, variance = _log_sum(part, beta)
            first += part.weight @ (mean - part.label)
            second += part.weight @ variance
        return float(first), float(second)

    def _beta(self, temperature: float) -> float:
        self._check_not_empty()
        check_above("temperature", temperature, 0.0)
        check_at_most("temperature", temperature, 1.0 / _RANGE[0])
        beta = 1.0 / temperature
        check_at_most("1 / temperature", beta, _RANGE[1])
        return beta

    def _blocks(self) -> Any:
        for part in self._parts:
            for start in range(0, len(part.label), _ROWS):
                rows = slice(start, start + _ROWS)
                yield _Part(*(x[rows] for x in part))

    def _check_not_empty(self) -> None:
        if not len(self):
            raise value_error(
                "`CompactLogits` must hold a token: call `update`", tokens=0
            )


def least_by_newton(
    slopes: Callable[[float], tuple[float, float]],
    low: float,
    high: float,
    start: float,
    tolerance: float = 1e-4,
) -> float:
    """Where a convex loss is least, or the end of a range beyond which it is.

    `slopes` gives its first two derivatives at a point > 0. It ends with a
    relative step below `tolerance`, which leaves about its square as the error.
    """
    ends = low, high
    point = min(max(start, low), high)
    for step in range(200):
        if step == _NEWTON:
            for end, outwards in zip(ends, (1.0, -1.0), strict=True):
                if outwards * slopes(end)[0] >= 0:
                    return end
        slope, curvature = slopes(point)
        if slope > 0:
            high = point
        else:
            low = point
        proposal = point - slope / curvature if curvature > 0 else low
        if curvature > 0 and abs(proposal - point) <= tolerance * point:
            return proposal
        if not low < proposal < high:
            proposal = math.sqrt(low * high)
        point = proposal
    return point


def _stored(num_tokens: int) -> dict[str, Stored]:
    """What the arrays of a file must be, in the order of `_Part`."""
    return {
        "top": Stored("f", (num_tokens, _TOP), float(_LOWEST), 0.0),
        "rest": Stored("f", (num_tokens, len(_NODES)), -1e3, 22.0),
        "label": Stored("f", (num_tokens,), -1e38, 0.0),
        "correct": Stored("b", (num_tokens,)),
        "weight": Stored("f", (num_tokens,), 1e-45, 1e38),
    }


def _row_blocks(places: np.ndarray, num_classes: int) -> Iterator[Any]:
    """Rows of about `_LOGITS` logits, as slices where they are neighbors."""
    size = max(1, _LOGITS // num_classes)
    for start in range(0, len(places), size):
        rows: Any = places[start : start + size]
        if rows[-1] - rows[0] == len(rows) - 1:
            # A slice is no copy.
            rows = slice(rows[0], rows[-1] + 1)
        yield rows


def _shrunk(read: Batch, rows: Any, weight: np.ndarray) -> _Part:
    z, labels = read.outputs[rows], read.labels[rows]
    facts: Any = read.facts
    largest, predicted = facts.largest[rows], facts.predicted[rows]
    places = np.stack([_places_of_top(x) for x in z])
    top = np.take_along_axis(z, places, axis=-1)
    # Differences of -inf would be NaN.
    smallest = np.maximum(top.min(axis=-1), _LOWEST)
    rest = log_sums(z, smallest, places)
    label = z[np.arange(len(z)), labels] - largest
    return _Part(
        np.maximum(top - largest[:, None], _LOWEST).astype("float32"),
        rest,
        label.astype("float32"),
        predicted == labels,
        weight.astype("float32"),
    )


def _places_of_top(z: np.ndarray) -> np.ndarray:
    """Places of the largest logits `(num_classes,)`.

    Only groups with one of the largest first logits have others of them.
    """
    width = len(z) // _GROUP
    if width < 2 * _TOP:
        return np.argpartition(z, -_TOP)[-_TOP:]
    groups = z[: _GROUP * width].reshape(_GROUP, width)
    columns = np.argpartition(groups.max(axis=0), -_TOP)[-_TOP:]
    rest = np.arange(_GROUP * width, len(z))
    places = np.arange(_GROUP)[:, None] * width + columns
    places = np.concatenate([places.reshape(-1), rest])
    return places[np.argpartition(z[places], -_TOP)[-_TOP:]]


def _log_sum(part: _Part, beta: float) -> tuple[Any, Any, Any]:
    """log sum_k exp(beta z_k), and its first and second derivative."""
    top = part.top.astype("float64")
    powers = np.exp(beta * top)
    low = top.min(axis=-1)
    scale = np.exp(beta * low)
    rest, slope, curvature = (scale * x for x in interpolated(part.rest, beta))
    total = powers.sum(axis=-1) + rest
    first = (powers * top).sum(axis=-1) + slope + rest * low
    second = (powers * top * top).sum(axis=-1) + curvature
    second += (2.0 * slope + rest * low) * low
    first, second = first / total, second / total
    return np.log(total), first, second - first * first


def log_sums(
    logits: np.ndarray, start: np.ndarray, skip: np.ndarray
) -> np.ndarray:
    """log sum_k exp(b (z_k - m)) at each node b, as steps to the next.

    One exp of each logit z serves all nodes, as they are products of powers.
    No z exceeds `start`, m, but for those to `skip`. Returns the first
    logarithm and the differences of each from the one before, float32
    `(n, 21)`.
    """
    count, num_classes = logits.shape
    width = min(num_classes, _CACHED)
    size = max(1, _CACHED // width)
    room = np.ones((1 + len(_POWERS), size * width), "float32")
    sums = np.zeros((count, len(room) * len(_POWERS)))
    for low in range(0, count, size):
        rows = slice(low, low + size)
        for first in range(0, num_classes, width):
            z = logits[rows, first : first + width]
            powers = room[:, : z.size].reshape(-1, *z.shape)
            where = skip[rows] - first
            sums[rows] += _products(z, start[rows, None], where, powers)
    found = np.log(np.maximum(sums[:, _PLACES], _NOTHING))
    # Float32 rounds small differences less than large logarithms.
    return np.diff(found, axis=-1, prepend=0.0).astype("float32")


def _products(
    logits: np.ndarray, start: np.ndarray, skip: np.ndarray, powers: np.ndarray
) -> np.ndarray:
    """Sums of products of powers of exp(z / 20), `(n, 42)`.

    The powers `(7, n, k)` are overwritten, except the first, which is 1.
    """
    one, two, four, eight, sixteen, twenty = powers[1:]
    np.subtract(logits, start, out=one, casting="same_kind")
    np.multiply(one, np.float32(_UNIT), out=one)
    row, place = np.nonzero((skip >= 0) & (skip < one.shape[-1]))
    one[row, skip[row, place]] = -np.inf
    np.exp(one, out=one)
    np.multiply(one, one, out=two)
    np.multiply(two, two, out=four)
    np.multiply(four, four, out=eight)
    np.multiply(eight, eight, out=sixteen)
    np.multiply(four, sixteen, out=twenty)
    count, width = one.shape
    whole = width - width % _ADDED
    total = np.zeros((count, len(powers), len(_POWERS)))
    for part in (slice(whole), slice(whole, None)):
        x = powers[..., part]
        if x.size:
            size = min(_ADDED, x.shape[-1])
            x = x.reshape(*x.shape[:2], -1, size).transpose(1, 2, 0, 3)
            found = np.matmul(x, x[:, :, 1:].transpose(0, 1, 3, 2))
            total += found.sum(axis=1, dtype="float64")
    return total.reshape(count, -1)


@functools.lru_cache(maxsize=16)
def _weights(b: float) -> np.ndarray:
    """Maps sums at the nodes to the sum at b and two slopes, `(21, 3)`.

    Least squares over all logits that may be, relative to what stands beside
    them, and with a penalty for rounding.
    """
    z = -np.r_[0.0, np.geomspace(1e-3, _FARTHEST, _NUM_LOGITS - 1)]
    of_nodes, of_b = np.exp(np.outer(z, _NODES)), np.exp(b * z)
    scale = 1.0 / (of_b + _SHARE)
    rounding = _ROUNDING * (of_nodes * scale[:, None]).max(axis=0)
    left = of_nodes * scale[:, None]
    left = np.r_[left, np.diag(rounding) * np.sqrt(_NUM_LOGITS) / 3.0]
    right = np.stack([of_b, of_b * z, of_b * z * z], axis=-1) * scale[:, None]
    right = np.r_[right, np.zeros((len(rounding), 3))]
    return np.linalg.lstsq(left, right, rcond=None)[0]


def interpolated(steps: np.ndarray, b: float) -> tuple[Any, Any, Any]:
    """sum_k exp(b z_k) and two derivatives by b, from `log_sums`, `(n,)`."""
    sums = np.exp(np.cumsum(steps.astype("float64"), axis=-1))
    found = sums @ _weights(b)
    return found[:, 0], found[:, 1], found[:, 2]
