"""How often the report calls a network over- or underconfident.

Calibrated networks should be called so in at most 5 % of all test sets,
however few errors they make; overconfident ones as often as possible. Each
draw makes a test set, with every confidence equal to one number or spread
around it on the log-odds scale, and asks for the verdict of the report.

    python benchmarks/verdicts.py --out=benchmarks/results/verdicts.md

Takes about five minutes on one CPU core.
"""

import numpy as np
from absl import app
from absl import flags
from reporting import machine
from reporting import markdown_table
from reporting import publish
from scipy.special import expit
from scipy.special import logit
from scipy.special import ndtri

from keras_calib.metrics.mean_gap import mean_gap
from keras_calib.reporting.verdict import direction

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
        gap = mean_gap(np.ones(n), wrong, doubt)
        found[direction(gap)[0]] += int(times)
    return {kind: count / num_draws for kind, count in found.items()}


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
    publish(run(_NUM_DRAWS.value, _SEED.value), _OUT.value)


if __name__ == "__main__":
    app.run(main)
