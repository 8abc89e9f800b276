"""Whether `plan` predicts what the selector certifies.

The populations are those of `risk_guarantee.py`. The first table predicts from
a pilot of 200,000 samples, so that what is tested is the simulated walk: the
share of fits that certify some threshold, and one of at least half the best
coverage. `simulated` is the frequency of this over fresh samples and the
library's own `fixed_sequence`. The second table predicts the five rows with the
largest differences from other pilots. The third plans from small pilots, and
gives the true power at the number of labels that they ask for.

    python benchmarks/planning.py --out=benchmarks/results/planning.md

Takes about a quarter of an hour on one CPU core with `--num_fits=1000`.
"""

import numpy as np
from absl import app, flags
from ladders import fixed_sequence, ranked
from reporting import machine, markdown_table, publish
from risk_guarantee import (
    DELTA,
    LIMITS,
    NUM_POINTS,
    SIZES,
    Truth,
    draw,
    populations,
)

import keras_calib
from keras_calib.selection.certification import certified_coverage, of_pilot

_PILOTS = flags.DEFINE_integer("num_pilots", 10, "Small pilots per row.")

LARGE, LARGEST = 200_000, 5_000_000
NUM_LARGE, NUM_WORST = 20, 5


def pilot(of, n, rng):
    """Scores and correctness of n samples."""
    u = rng.random(n)
    correct = rng.random(n) >= of.error[(u * NUM_POINTS).astype(int)]
    return -(np.floor(u * of.levels) if of.levels else u), correct


def simulated(of, n, limit, fits, rng):
    """True coverage that each fit certifies, by the library's own walk."""
    found = np.zeros(fits)
    for i in range(fits):
        accepted, wrong, coverage = draw(of, n, rng)
        passed = np.flatnonzero(fixed_sequence(accepted, wrong, limit, DELTA))
        found[i] = coverage[passed[-1]] if len(passed) else 0.0
    return found


def power_table(fits, seed):
    rows, worst = [], []
    for limit in LIMITS:
        for name, of in populations(limit).items():
            rng = np.random.default_rng([seed, round(limit * 1e6)])
            large = ranked(*pilot(of, LARGE, rng))
            known, _ = of_pilot(large, 1, rng)
            half = 0.5 * Truth(of, limit).best
            for n in SIZES:
                predicted = certified_coverage(
                    known, n, limit, DELTA, 4000, rng
                )
                seen = simulated(of, n, limit, fits, rng)
                row = [name, limit, f"{n:,}"]
                for what, least in (
                    ("any threshold", 1e-9),
                    ("half the best coverage", max(half, 1e-9)),
                ):
                    pair = [np.mean(x >= least) for x in (predicted, seen)]
                    row += [f"{x:.3f}" for x in pair]
                    gap = abs(pair[0] - pair[1])
                    worst.append((gap, name, limit, n, what))
                row += [f"{x.mean():.3f}" for x in (predicted, seen)]
                rows.append(row)
                print(*row, sep=" | ", flush=True)
    header = ["population", "risk", "n", "power: predicted", "simulated"]
    header += ["of half the best coverage: predicted", "simulated"]
    header += ["mean coverage: predicted", "simulated"]
    return markdown_table(header, rows), sorted(worst, reverse=True)


def noise_table(worst, fits, seed):
    """Power for half the best coverage, predicted from pilots of two sizes."""
    rows = []
    settings = dict.fromkeys(tuple(x[1:4]) for x in worst)
    for name, limit, n in [*settings][:NUM_WORST]:
        of = populations(limit)[name]
        half = 0.5 * Truth(of, limit).best
        rng = np.random.default_rng([seed, 2])
        seen = np.mean(simulated(of, n, limit, fits, rng) >= half)
        powers = []
        for size in [LARGEST] + NUM_LARGE * [LARGE]:
            one = ranked(*pilot(of, size, rng))
            known, _ = of_pilot(one, 1, rng)
            powers.append(np.mean(_coverages(known, n, limit, rng) >= half))
        largest, *others = powers
        rows.append(
            [name, limit, f"{n:,}", f"{seen:.3f}", f"{largest:.3f}"]
            + [f"{np.mean(others):.3f}"]
            + [f"{min(others):.3f} to {max(others):.3f}"]
        )
    header = ["population", "risk", "n", "simulated"]
    header += [f"from a pilot of {LARGEST:,}", f"mean of {NUM_LARGE} pilots"]
    header += ["range of these"]
    return markdown_table(header, rows)


def pilot_table(num_pilots, seed):
    rows = []
    for limit, name in (
        (0.02, "calibrated, accuracy 0.93"),
        (0.05, "calibrated, accuracy 0.93"),
        (0.05, "calibrated, accuracy 0.75"),
    ):
        of = populations(limit)[name]
        rng = np.random.default_rng([seed, 1])
        large = ranked(*pilot(of, LARGE, rng))
        known, _ = of_pilot(large, 1, rng)
        for size in (300, 1000):
            powers, counts, refused = [], [], 0
            for _ in range(num_pilots):
                try:
                    found = keras_calib.plan(
                        risk=limit,
                        pilot=pilot(of, size, rng),
                        max_samples=20_000,
                    )
                except ValueError:
                    refused += 1
                    continue
                asked = found.samples, int(min(found.high, 20_000))
                counts.append(asked)
                powers.append(
                    [
                        (_coverages(known, n, limit, rng) > 0).mean()
                        for n in asked
                    ]
                )
            row = [name, limit, size, f"{refused} of {num_pilots}"]
            for asked, reached in zip(
                np.transpose(counts), np.transpose(powers), strict=True
            ):
                row += [f"{np.median(asked):,.0f}"]
                row += [f"{np.mean(reached):.3f}", f"{np.min(reached):.3f}"]
            rows.append(row)
            print(*row, sep=" | ", flush=True)
    header = ["population", "risk", "pilot", "refused"]
    for what in ("`samples`", "`high`"):
        header += [f"{what}: median", "mean true power", "least"]
    return markdown_table(header, rows)


def _coverages(known, n, limit, rng):
    return certified_coverage(known, n, limit, DELTA, 2000, rng)


def run(fits, num_pilots, seed):
    table, worst = power_table(fits, seed)
    missed = [
        f"{name} at {limit}, n = {n:,}, {what} ({gap:.3f})"
        for gap, name, limit, n, what in worst
        if gap > 0.03
    ]
    return "\n\n".join(
        [
            f"delta = {DELTA}, LTT, {fits:,} fits per row, seed {seed}. "
            f"{machine()}.",
            f"Largest difference of predicted and simulated power: "
            f"{worst[0][0]:.3f}. Two standard errors of a simulated power "
            f"are up to {1 / np.sqrt(fits):.3f}. Differences above 0.030: "
            f"{'; '.join(missed) or 'none'}.",
            table,
            "Power for half the best coverage where the differences are "
            f"largest, predicted again from other pilots: one of "
            f"{LARGEST:,} and {NUM_LARGE} of {LARGE:,} samples. What their "
            "range covers is the noise of a pilot.",
            noise_table(worst, fits, seed),
            f"Plans for a power of 0.8 from {num_pilots} small pilots, with "
            "at most 20,000 labels; `high` is the upper end of the 90 % "
            "interval of `samples`.",
            pilot_table(num_pilots, seed),
        ]
    )


def main(_):
    # `num_fits`, `seed` and `out` are flags of `risk_guarantee.py`.
    given = flags.FLAGS
    publish(run(given.num_fits, _PILOTS.value, given.seed), given.out)


if __name__ == "__main__":
    app.run(main)
