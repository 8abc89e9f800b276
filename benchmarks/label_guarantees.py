"""Thresholds by label: what a promise for all labels at once costs.

Each label has answers of a known confidence c, which is the chance to be right,
so the true risk of every threshold is known. Labels differ in how sure they
are. "independent" labels share nothing. "alike" labels have nine tenths of
their confidence in common, and err on the same examples.

`equal shares` is what `MultiLabelSelector` does: delta / labels for each label.
`Holm` passes the share of a label on that is certified as a whole. Its proof
needs labels that are independent, or risks that grow with coverage. `fixed` is
Holm's procedure on 100 thresholds that the examples did not choose, from 8
starts; its proof needs neither. `alone` promises for each label by itself.

Coverage is the true one, the mean over labels and draws, and `any false` the
share of draws in which some label has a true risk above the limit.

    python benchmarks/label_guarantees.py --num_draws=40 \
        --out=benchmarks/results/label_guarantees.md
"""

from collections.abc import Callable, Iterator

import numpy as np
from absl import app, flags
from ladders import last, ranked
from reporting import machine, markdown_table, publish

from keras_calib.formulas.intervals import binomial_p_value
from keras_calib.selection import families
from keras_calib.selection.claims import Claim, errors
from keras_calib.selection.ladder import Ladder

_NUM_DRAWS = flags.DEFINE_integer("num_draws", 200, "Per row.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

RISK, DELTA = 0.1, 0.1
GRID = np.linspace(0.995, 0.5, 100)
# Normal draws from which the true coverage and risk of thresholds come.
MANY = 200_000
# Scales of the log-odds: the easiest label and the hardest one.
SCALES = {"mixed": (6.0, 1.0), "most easy": (12.0, 2.5), "hard": (2.5, 1.0)}


class Labels:
    """Labels of which every threshold has a known risk and coverage."""

    def __init__(self, kind: str, count: int, rng: np.random.Generator):
        self.scales = np.geomspace(*SCALES[kind], count)
        z = np.sort(abs(rng.normal(size=MANY)))[::-1]
        share = np.arange(1, MANY + 1)
        self.z = z
        self.risks = [
            np.cumsum(1.0 / (1.0 + np.exp(a * z))) / share for a in self.scales
        ]

    def draw(
        self, size: int, alike: bool, rng: np.random.Generator
    ) -> list[Ladder]:
        """The ladder of each label."""
        shape = size, len(self.scales)
        own, common = rng.normal(size=shape), rng.normal(size=(size, 1))
        z = np.sqrt(0.9) * common + np.sqrt(0.1) * own if alike else own
        score = abs(z) * self.scales
        u = rng.random((size, 1)) if alike else rng.random(shape)
        right = u < 1.0 / (1.0 + np.exp(-score))
        return [ranked(*x) for x in zip(score.T, right.T, strict=True)]

    def outcome(self, thresholds: list[float]) -> tuple[float, bool]:
        """Mean coverage, and whether any risk is too high."""
        found, false = [], False
        for k, threshold in enumerate(thresholds):
            place = np.searchsorted(-self.z, -threshold / self.scales[k])
            found.append(place / MANY)
            false |= place > 0 and self.risks[k][place - 1] > RISK
        return float(np.mean(found)), bool(false)


def lenient(found: list, masks: list[np.ndarray]) -> list[float]:
    """The most lenient certified threshold of each, inf without one."""
    pairs = zip(found, masks, strict=True)
    places = [last(*pair) for pair in pairs]
    return [np.inf if place is None else place for place in places]


def equal_shares(found: list[Ladder]) -> list[float]:
    masks = families.dependent(found, RISK, DELTA).masks
    return lenient([one.threshold for one in found], masks)


def alone(found: list[Ladder]) -> list[float]:
    masks = families.separate(found, RISK, DELTA).masks
    return lenient([one.threshold for one in found], masks)


def holm(found: list[Ladder]) -> list[float]:
    claims = [errors(one, RISK, DELTA / len(found)) for one in found]
    masks, _ = families.holm(claims, DELTA)
    return lenient([one.threshold for one in found], masks)


def fixed(found: list[Ladder]) -> list[float]:
    tried = np.log(GRID) - np.log1p(-GRID)
    first = np.linspace(0, len(tried), 8, endpoint=False).astype(int)
    claims = []
    for one in found:
        place = np.searchsorted(-one.threshold, -tried, side="right") - 1
        accepted = np.where(place >= 0, one.accepted[place], 0)
        wrong = np.where(place >= 0, one.loss[place], 0)
        p_value = binomial_p_value(wrong, accepted, RISK)
        claims.append(Claim(p_value, first, np.full(8, 1 / 8)))
    masks, _ = families.holm(claims, DELTA)
    return lenient([tried] * len(found), masks)


PROCEDURES: dict[str, Callable] = {
    "equal shares": equal_shares,
    "Holm": holm,
    "fixed": fixed,
    "alone": alone,
}


def rows(rng: np.random.Generator) -> Iterator[list]:
    for kind in SCALES:
        for count in (5, 20, 100):
            labels = Labels(kind, count, rng)
            for alike in (False, True):
                found: dict[str, list] = {name: [] for name in PROCEDURES}
                for _ in range(_NUM_DRAWS.value):
                    drawn = labels.draw(1000, alike, rng)
                    for name, procedure in PROCEDURES.items():
                        found[name].append(labels.outcome(procedure(drawn)))
                coverage = [
                    f"{np.mean([x for x, _ in pairs]):.3f}"
                    for pairs in found.values()
                ]
                false = [
                    f"{np.mean([x for _, x in pairs]):.3f}"
                    for pairs in found.values()
                ]
                how = "alike" if alike else "independent"
                yield [kind, count, how, *coverage, *false]


def main(_):
    table = markdown_table(
        [
            *("labels", "number", "of each other"),
            *(f"coverage: {name}" for name in PROCEDURES),
            *(f"any false: {name}" for name in PROCEDURES),
        ],
        list(rows(np.random.default_rng(_SEED.value))),
    )
    publish(
        f"1,000 examples, risk {RISK}, delta {DELTA}, "
        f"{_NUM_DRAWS.value} draws a row, seed {_SEED.value}. "
        f"{machine()}\n\n{table}",
        _OUT.value,
    )


if __name__ == "__main__":
    app.run(main)
