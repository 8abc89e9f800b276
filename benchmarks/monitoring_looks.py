"""False alarms of `Monitor` by when somebody looks.

`update` looks after every outcome, and what it adds in one call does not
change the evidence. So an alarm does not depend on when `alarms` is read, and
any schedule of looks sees a subset of what the first row sees. `add_sums`
looks after each window, and a change is taken to begin with a window. There
the sizes of windows matter: they are random here, log-uniform from 50 to 5,000
outcomes.

The laws of the outcomes are those of `monitoring.py`: the edges of the three
hypotheses. The streams of a row share its windows. Inside a block the order of
outcomes is drawn only where some order of them would reach the limit.

    python benchmarks/monitoring_looks.py \
        --out=benchmarks/results/monitoring_looks.md

Takes a quarter of an hour on one CPU core.
"""

from collections.abc import Iterator
from typing import NamedTuple

import monitoring
import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish

from keras_calib.formulas.evidence import log_evidence, start_mass, with_block
from keras_calib.monitoring.watch import (
    BLOCK,
    HORIZON,
    SCALE,
    CalibrationHolds,
    CoverageHolds,
    RiskHolds,
)

FLAGS = flags.FLAGS
_HYPOTHESES = flags.DEFINE_list(
    "hypotheses", ["risk", "coverage", "calibration"], "Which to measure."
)


class Stream(NamedTuple):
    """Independent outcomes of some kinds.

    Attributes:
        prior: Of the alternatives `(num_alternatives,)`.
        factors: Log factors by kind `(num_kinds, num_alternatives)`.
        shares: Of each kind `(num_kinds,)`.
    """

    prior: np.ndarray
    factors: np.ndarray
    shares: np.ndarray


def streams() -> dict[str, Stream]:
    """The three hypotheses, each at its edge."""
    made = {}
    values = np.array([0.0, 1.0])
    for name, holds, share in (
        ("risk", RiskHolds(0.01), 0.01),
        ("coverage", CoverageHolds(0.8, 0.8), 0.8),
    ):
        shares = np.array([1.0 - share, share])
        made[name] = Stream(holds.prior, holds.log_factors(values), shares)
    holds = CalibrationHolds(0.0)
    stated = np.tile(monitoring.LEVELS, 2)
    right = np.repeat(values, len(monitoring.LEVELS))
    shares = np.tile(monitoring.SHARES, 2)
    shares *= np.where(right > 0.5, stated, 1.0 - stated)
    factors = holds.log_factors(stated, right)
    made["calibration"] = Stream(holds.prior, factors, shares)
    return made


def alarmed(
    rng: np.random.Generator, of: Stream, ends: np.ndarray, limit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Which streams alarm by looks after each block, and after each outcome.

    Blocks end at `ends` `(num_blocks,)`.
    """
    num, threshold = FLAGS.num_streams, np.log(limit)
    wealth = np.full((num, len(of.prior)), -np.inf)
    at_ends, ever = np.zeros(num, bool), np.zeros(num, bool)
    rising = np.maximum(of.factors, 0.0)
    spent, start = 0.0, 0
    for end in ends:
        mass = start_mass(start, end, scale=SCALE, horizon=HORIZON)
        spent += mass
        counts = rng.multinomial(end - start, of.shares, num)
        opened = with_block(wealth, np.zeros(1), mass)
        wealth = opened + counts @ of.factors
        at_ends |= log_evidence(wealth, of.prior, spent) >= threshold
        most = log_evidence(opened + counts @ rising, of.prior, spent)
        rows = np.flatnonzero((most >= threshold) & ~ever)
        if end - start == BLOCK and len(rows):
            kinds = np.tile(np.arange(len(of.shares)), len(rows))
            order = np.repeat(kinds, counts[rows].ravel())
            order = rng.permuted(order.reshape(len(rows), BLOCK), axis=1)
            paths = np.cumsum(of.factors[order], axis=1)
            paths += opened[rows][:, None]
            found = log_evidence(paths, of.prior, spent).max(axis=1)
            ever[rows] = found >= threshold
        start = end
    return at_ends, ever


def table(rng: np.random.Generator) -> Iterator[list]:
    length = FLAGS.length
    blocks = np.arange(BLOCK, length + 1, BLOCK)
    some = np.zeros((3, FLAGS.num_streams), bool)
    for name, of in streams().items():
        if name not in _HYPOTHESES.value:
            continue
        limit = monitoring.LIMITS[name]
        sizes = np.exp(rng.uniform(np.log(50.0), np.log(5000.0), length // 50))
        windows = np.cumsum(sizes.astype(int))
        at_ends, ever = alarmed(rng, of, blocks, limit)
        of_windows, _ = alarmed(rng, of, windows[windows <= length], limit)
        found = np.stack([ever, at_ends, of_windows])
        some |= found
        row = [name, f"{1 / limit:.4f}", *(f"{x.mean():.4f}" for x in found)]
        print(*row, sep=" | ", flush=True)
        yield row
    if len(_HYPOTHESES.value) == 3:
        yield ["any", "0.0500", *(f"{x.mean():.4f}" for x in some)]


def main(_):
    rng = np.random.default_rng(FLAGS.seed)
    heads = ["hypothesis", "allowed", "after every outcome"]
    heads += ["after every 50", "after random windows"]
    parts = [
        "# False alarms by when somebody looks",
        machine(),
        f"Share of {FLAGS.num_streams:,} streams of {FLAGS.length:,} outcomes "
        "with an alarm. The first column is what `update` does, whenever "
        "`alarms` is read. The last one is `add_sums`, with windows of random "
        "sizes from 50 to 5,000:",
        markdown_table(heads, table(rng)),
    ]
    publish("\n\n".join(parts), FLAGS.out)


if __name__ == "__main__":
    app.run(main)
