"""How often the report calls a network over- or underconfident.

Calibrated networks should be called so in at most 5 % of all test sets,
however few errors they make; overconfident ones as often as possible. Each
draw makes a test set, with every confidence equal to one number or spread
around it on the log-odds scale, and asks for the verdict of the report.

A second table has what the report answers with the ECE and its interval
beside it, also of a network whose gaps of both signs cancel in the mean.

    python benchmarks/verdicts.py --out=benchmarks/results/verdicts.md

Takes about eight minutes on one CPU core.
"""

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish
from scipy.special import expit, logit, ndtri

import keras_calib as kc
from keras_calib.metrics.gap_estimates import gap_estimate
from keras_calib.reporting.verdict import direction, verdict

_NUM_DRAWS = flags.DEFINE_integer("num_draws", 2000, "Per row.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

CONFIDENCES = (0.9, 0.99, 0.998)
SIZES = (20, 100, 300, 1_000, 10_000)
# Standard deviation of the log-odds of the confidence.
SPREADS = (0.0, 1.5)
KINDS = ("over", "under", "few", "even")
# Errors per expected error.
NETWORKS = {"calibrated": 1.0, "twice the errors": 2.0, "half": 0.5}
# Answers, by how they begin.
ANSWERS = ("Yes:", "Yes, as far", "Only on average", "Nearly", "No", "These")
# Error rate less 1 - confidence, by the order of the confidence.
GAPS = {"calibrated": 0.0, "gaps of 0.08, both signs": 0.08}


def verdicts(
    doubt: np.ndarray, factor: float, num_draws: int, rng: np.random.Generator
) -> dict[str, float]:
    """Shares of the verdicts on networks with the same confidences."""
    n = len(doubt)
    found = dict.fromkeys(KINDS, 0)
    # The verdict depends on the number of errors alone.
    errors = np.empty(num_draws, int)
    for i in range(num_draws):
        errors[i] = np.sum(rng.random(n) < np.minimum(factor * doubt, 1.0))
    for number, times in zip(
        *np.unique(errors, return_counts=True), strict=True
    ):
        wrong = np.r_[np.ones(number), np.zeros(n - number)]
        gap = gap_estimate(np.ones(n), wrong, doubt)
        found[direction(gap)[0]] += int(times)
    return {kind: count / num_draws for kind, count in found.items()}


def answers(
    doubt: np.ndarray, gap: float, num_draws: int, rng: np.random.Generator
) -> dict[str, float]:
    """Shares of the answers of the report on one network."""
    ups = np.arange(len(doubt)) * 4 // len(doubt) % 2
    risk = np.clip(doubt + gap * np.where(ups, 1.0, -1.0), 0.0, 1.0)
    found = dict.fromkeys(ANSWERS, 0)
    for _ in range(num_draws):
        wrong = rng.random(len(doubt)) < risk
        ece = kc.ECE()
        ece.update_scores(1.0 - doubt, ~wrong)
        low, high = ece.interval()
        values = {"value": float(ece.result()), "low": low, "high": high}
        mean = gap_estimate(np.ones(len(doubt)), wrong.astype(float), doubt)
        answer = verdict((mean, values), None)["answer"]
        found[next(a for a in ANSWERS if answer.startswith(a))] += 1
    return {answer: count / num_draws for answer, count in found.items()}


def run_answers(num_draws: int, seed: int) -> str:
    rows = []
    for name, gap in GAPS.items():
        for n in SIZES[1:]:
            noise = ndtri((np.arange(n) + 0.5) / n)
            # Doubts of 0.16 in the mean, nowhere near 0 or 1.
            doubt = expit(-logit(0.85) - 0.75 * noise)
            rng = np.random.default_rng([seed, n])
            shares = answers(doubt, gap, num_draws, rng)
            shares = [f"{share:.3f}" for share in shares.values()]
            rows.append([name, f"{n:,}", *shares])
    return "\n\n".join(
        [
            f"What the report answers, in {num_draws} draws per row; answers "
            "by how they begin.",
            markdown_table(["network", "N", *ANSWERS], rows),
        ]
    )


def run(num_draws: int, seed: int) -> str:
    rows = []
    for name, factor in NETWORKS.items():
        for confidence in CONFIDENCES:
            for spread in SPREADS:
                for n in SIZES:
                    rng = np.random.default_rng([seed, n])
                    # Ascending confidence, as cells of a histogram lie.
                    noise = ndtri((np.arange(n) + 0.5) / n)
                    log_odds = logit(confidence) + spread * noise
                    doubt = expit(-log_odds)
                    shares = verdicts(doubt, factor, num_draws, rng)
                    rows.append(
                        [
                            name,
                            f"{doubt.mean():.4f}",
                            "equal" if spread == 0 else "spread",
                            f"{n:,}",
                            f"{doubt.sum():.1f}",
                            *(f"{shares[kind]:.3f}" for kind in KINDS),
                        ]
                    )
    header = ["network", "1 - confidence", "confidences", "N", "errors"]
    header += ["over", "under", "too few", "neither"]
    return "\n\n".join(
        [
            f"Verdicts of {num_draws} draws per row, seed {seed}. "
            f"{machine()}. `errors`: expected if calibrated.",
            markdown_table(header, rows),
        ]
    )


def main(_) -> None:
    tables = [
        run(_NUM_DRAWS.value, _SEED.value),
        run_answers(_NUM_DRAWS.value // 10, _SEED.value),
    ]
    publish("\n\n".join(tables), _OUT.value)


if __name__ == "__main__":
    app.run(main)
