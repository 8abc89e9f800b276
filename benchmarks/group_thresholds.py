"""Thresholds by group: false certificates, and what groups accept for them.

Samples of each group are drawn from populations whose error probability is a
known function of the rank, so that the true risk and coverage of every
threshold are known. `any false` is the share of fits in which some group gets
a threshold whose true risk exceeds the limit: at most 0.05 is guaranteed.
`fixed split` tests each group at delta / groups; `shared` is what the library
does, where groups that are certified as a whole pass their share on.
`of one group alone` is the mean true coverage over that of groups which are
each tested at the whole delta, as if there were no others.

    python benchmarks/group_thresholds.py \
        --out=benchmarks/results/group_thresholds.md
"""

import math

import numpy as np
from absl import app
from absl import flags
from reporting import machine
from reporting import markdown_table
from reporting import publish
from scipy.stats import beta

from keras_calib.formulas.intervals import binomial_p_value
from keras_calib.selection.group_walks import completion_levels
from keras_calib.selection.group_walks import num_testable
from keras_calib.selection.group_walks import shared_level
from keras_calib.selection.guarantees import starts
from keras_calib.selection.guarantees import walk

_NUM_FITS = flags.DEFINE_integer("num_fits", 2000, "Per row.")
_NUM_GROUPS = flags.DEFINE_integer("num_groups", 1000, "Of each fit.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

DELTA, RISK = 0.05, 0.05
NUM_POINTS = 20_000
POINTS = (np.arange(NUM_POINTS) + 0.5) / NUM_POINTS


def errors_of(shape: float) -> np.ndarray:
    """Error probability by rank; a larger shape is an easier group."""
    return 0.9 * (1.0 - beta.ppf(1.0 - POINTS, shape, 0.6))


LAWS = {
    "accuracy 0.93": errors_of(7.0),
    "accuracy 0.97": errors_of(18.0),
    "0.1 % above the limit": np.full(NUM_POINTS, 1.001 * RISK),
}
# Of 1,000 groups: law, size, part of the groups.
SETTINGS = {
    "alike": [("accuracy 0.93", 2000, 1.0)],
    "unequal sizes": [
        ("accuracy 0.93", 100, 0.3),
        ("accuracy 0.93", 500, 0.4),
        ("accuracy 0.93", 4000, 0.3),
    ],
    "most easy": [("accuracy 0.97", 2000, 0.9), ("accuracy 0.93", 2000, 0.1)],
    "all at the limit": [("0.1 % above the limit", 500, 1.0)],
    "easy, 10 % at the limit": [
        ("accuracy 0.97", 2000, 0.9),
        ("0.1 % above the limit", 2000, 0.1),
    ],
}


class Part:
    """Groups of one law and one size, of which all fits draw afresh."""

    def __init__(self, law: str, size: int, count: int, level: float | None):
        self.size, self.count = size, count
        self.error = LAWS[law].astype("float32")
        total = np.append(0.0, np.cumsum(LAWS[law])) / NUM_POINTS
        shares = np.arange(1, NUM_POINTS + 1) / NUM_POINTS
        self.risk = total[1:] / shares
        good = np.flatnonzero(self.risk <= RISK * (1.0 + 1e-9))
        self.best = shares[good[-1]] if len(good) else 0.0
        self.level = level
        # P-values by accepted and wrong; more errors than this never pass.
        most = int(RISK * size) + 2
        accepted = np.arange(1, size + 1)[:, None]
        self.table = binomial_p_value(np.arange(most), accepted, RISK)
        self.table[:, -1] = 1.0

    def draw(self, rng: np.random.Generator) -> tuple:
        """P-values and true coverage of each threshold of each group."""
        steps = rng.standard_exponential(
            (self.count, self.size + 1), dtype=np.float32
        )
        np.cumsum(steps, axis=1, out=steps)
        u = steps[:, :-1] / steps[:, -1:]
        index = np.minimum((u * NUM_POINTS).astype(np.int32), NUM_POINTS - 1)
        wrong = rng.random(u.shape, dtype=np.float32) < self.error[index]
        wrong = np.cumsum(wrong, axis=1, dtype=np.int32)
        np.minimum(wrong, self.table.shape[1] - 1, out=wrong)
        p_value = self.table[np.arange(self.size), wrong]
        coverage = 0.5 * (u + np.append(u[:, 1:], np.ones((len(u), 1)), 1))
        coverage[:, -1] = 1.0
        return p_value, coverage

    def walks(self, level: float) -> tuple:
        ranks, shares = starts(self.size, RISK, level)
        return ranks - 1, shares / level

    def outcome(self, p_value, coverage, structure, level) -> tuple:
        """True coverage, and whether the true risk is too high, by group."""
        first, shares = structure
        certified = walk(p_value, first, shares * level)
        # Certified thresholds may have gaps: the last one is used.
        last = self.size - 1 - certified[:, ::-1].argmax(axis=1)
        some = certified.any(axis=1)
        found = np.where(some, coverage[np.arange(len(last)), last], 0.0)
        place = np.clip((found * NUM_POINTS).astype(int) - 1, 0, None)
        false = some & (self.risk[place] > RISK * (1.0 + 1e-9))
        return found, false


def measure(setting: list, groups: int, fits: int, seed: int) -> dict:
    sizes = np.concatenate(
        [np.full(round(share * groups), size) for _, size, share in setting]
    )
    count = num_testable(sizes, RISK, DELTA)
    level = DELTA / count
    fewest = np.sort(sizes)[::-1][count - 1]
    parts = []
    for law, size, share in setting:
        tested = size >= fewest
        part = Part(law, size, round(share * groups), tested and level)
        parts.append(part)
    rng = np.random.default_rng(seed)
    names = "shared", "fixed split", "alone"
    covered = {name: np.zeros(len(parts)) for name in names}
    false = dict.fromkeys(names, 0)
    passed_on = 0.0
    for _ in range(fits):
        drawn = [part.draw(rng) for part in parts]
        tested = [
            (part, one, part.walks(level))
            for part, one in zip(parts, drawn, strict=True)
            if part.level
        ]
        completed = [
            completion_levels(one[0], *structure)
            for part, one, structure in tested
        ]
        raised = float(shared_level(np.concatenate(completed), DELTA))
        passed_on += raised / level / fits
        wrong = dict.fromkeys(names, False)
        for place, part in enumerate(parts):
            found = {"alone": (part.walks(DELTA), DELTA)}
            if part.level:
                found["shared"] = part.walks(level), raised
                found["fixed split"] = part.walks(level), level
            for name, (structure, at) in found.items():
                if len(structure[0]):
                    got = part.outcome(*drawn[place], structure, at)
                    covered[name][place] += got[0].mean() / fits
                    wrong[name] |= bool(got[1].any())
        for name in names:
            false[name] += wrong[name]
    weight = np.array([share for *_, share in setting])
    mean = {name: float(weight @ covered[name]) for name in names}
    best = float(weight @ [part.best for part in parts])
    return {
        "false": {name: false[name] / fits for name in names},
        "mean": mean,
        "best": best,
        "raised": passed_on,
        "tested": count,
    }


HEADER = ["groups", "tested", "any false: shared", "any false: fixed split"]
HEADER += ["any false: alone", "best coverage", "coverage: shared"]
HEADER += ["fixed split", "alone", "shared, of one group alone", "level x"]


def run(groups: int, fits: int, seed: int) -> str:
    rows, worst, least = [], 0.0, {}
    for name, setting in SETTINGS.items():
        got = measure(setting, groups, fits, seed)
        mean, false = got["mean"], got["false"]
        ratio = mean["shared"] / mean["alone"] if got["best"] else math.nan
        worst = max(worst, false["shared"])
        least[name] = ratio
        row = [name, got["tested"]]
        row += [f"{false[k]:.4f}" for k in ("shared", "fixed split", "alone")]
        row += [f"{got['best']:.3f}", f"{mean['shared']:.3f}"]
        row += [f"{mean['fixed split']:.3f}", f"{mean['alone']:.3f}"]
        row += ["-" if math.isnan(ratio) else f"{ratio:.3f}"]
        row += [f"{got['raised']:.2f}"]
        rows.append(row)
        print(*row, sep=" | ", flush=True)
    allowed = DELTA + 2.0 * math.sqrt(DELTA * (1.0 - DELTA) / fits)
    return "\n\n".join(
        [
            f"{groups:,} groups, risk {RISK}, delta = {DELTA}, {fits:,} fits "
            f"per row, seed {seed}. {machine()}.",
            f"Most fits with any false chosen threshold: {worst:.4f} (allowed "
            f"with two standard errors: {allowed:.4f}).",
            "`level x`: the level of a group over delta / groups tested, after "
            "groups that are certified as a whole passed theirs on.",
            markdown_table(HEADER, rows),
        ]
    )


def main(_) -> None:
    text = run(_NUM_GROUPS.value, _NUM_FITS.value, _SEED.value)
    publish(text, _OUT.value)


if __name__ == "__main__":
    app.run(main)
