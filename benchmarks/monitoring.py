"""Alarms of `Monitor`: how often false, how late, how fast, beside peers.

The tables of alarms run the formulas of `keras_calib.formulas.evidence` on
blocks of 50 outcomes, as `Watch.add_sum` does, for all streams at once, with
a look after every block. Sums of a block are drawn from their law: errors and
accepted answers are binomial; confidences have 12 values, whose numbers are
multinomial, with a binomial number of right ones at each.

False alarms: the risk is exactly 1 %, the accepted share exactly that
expected, and confidences exactly calibrated with `tolerance=0`. These are the
edges of the hypotheses, where alarms are most frequent. The three are drawn
independently; alpha is 0.05. Delays are from the change to the alarm, in
outcomes, of streams without an alarm before it; alpha and tolerance are the
defaults.

    python benchmarks/monitoring.py --part=alarms \
        --out=benchmarks/results/monitoring_alarms.md

The other parts are `delays`, and `peer`, which needs MAPIE. Each takes a few
minutes on one CPU core.
"""

import importlib.metadata
import time
from collections.abc import Callable
from collections.abc import Iterator

import numpy as np
from absl import app
from absl import flags
from reporting import machine
from reporting import markdown_table
from reporting import publish

import keras_calib as kc
from keras_calib.formulas.evidence import log_evidence
from keras_calib.formulas.evidence import start_mass
from keras_calib.formulas.evidence import with_block
from keras_calib.monitoring.hypotheses import CalibrationHolds
from keras_calib.monitoring.hypotheses import CoverageHolds
from keras_calib.monitoring.hypotheses import RiskHolds
from keras_calib.monitoring.watch import BLOCK
from keras_calib.monitoring.watch import HORIZON
from keras_calib.monitoring.watch import SCALE

_NUM_STREAMS = flags.DEFINE_integer("num_streams", 2000, "Without a change.")
_LENGTH = flags.DEFINE_integer("length", 1_000_000, "Outcomes of a stream.")
_NUM_DELAYS = flags.DEFINE_integer("num_delays", 400, "Streams of a delay.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_PART = flags.DEFINE_enum(
    "part", "alarms", ["alarms", "delays", "peer"], "What to measure."
)
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

LEVELS = np.array(
    [0.35, 0.5, 0.6, 0.7, 0.8, 0.88, 0.93, 0.96, 0.98, 0.99, 0.996, 0.999]
)
SHARES = np.array([2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 15, 15]) / 100.0
CHANGES = (0, 10_000, 100_000, 500_000)
LIMITS = {"risk": 40.0, "calibration": 80.0, "coverage": 80.0}
Draw = Callable[[int, int], np.ndarray]


def first_alarms(
    prior: np.ndarray, draw: Draw, length: int, num: int, limit: float
) -> np.ndarray:
    """Outcomes until the alarm `(num,)`, inf without one.

    `draw(block, num)` gives the sums of log factors of a block
    `(num, num_alternatives)`.
    """
    wealth = np.full((num, len(prior)), -np.inf)
    found, spent = np.full(num, np.inf), 0.0
    for block in range(length // BLOCK):
        ends = block * BLOCK, (block + 1) * BLOCK
        mass = start_mass(*ends, scale=SCALE, horizon=HORIZON)
        spent += mass
        wealth = with_block(wealth, draw(block, num), mass)
        above = log_evidence(wealth, prior, spent) >= np.log(limit)
        found[above & np.isinf(found)] = ends[1]
        if np.isfinite(found).all():
            break
    return found


def of_shares(
    rng: np.random.Generator, holds: RiskHolds | CoverageHolds, share: Callable
) -> Draw:
    """Draws sums of outcomes that are 1 with the probability of a block."""
    factors = holds.log_factors(np.array([0.0, 1.0]))

    def draw(block: int, num: int) -> np.ndarray:
        ones = rng.binomial(BLOCK, share(block), num)[:, None]
        return ones * factors[1] + (BLOCK - ones) * factors[0]

    return draw


def of_confidences(
    rng: np.random.Generator, holds: CalibrationHolds, scale: Callable
) -> Draw:
    """Draws sums of answers whose log-odds are too large by a factor."""
    tables = {}
    log_odds = np.log(LEVELS / (1.0 - LEVELS))

    def draw(block: int, num: int) -> np.ndarray:
        factor = scale(block)
        if factor not in tables:
            stated = 1.0 / (1.0 + np.exp(-log_odds * factor))
            zero = np.zeros_like(stated)
            wrong = holds.log_factors(stated, zero)
            tables[factor] = wrong, holds.log_factors(stated, zero + 1.0)
        wrong, right = tables[factor]
        count = rng.multinomial(BLOCK, SHARES, num)
        hits = rng.binomial(count, LEVELS)
        return (count - hits) @ wrong + hits @ right

    return draw


def false_alarms(rng: np.random.Generator) -> Iterator[list]:
    num, length = _NUM_STREAMS.value, _LENGTH.value
    risk, coverage = RiskHolds(0.01), CoverageHolds(0.8, 0.8)
    calibrated = CalibrationHolds(0.0)
    draws = {
        "risk": (risk, of_shares(rng, risk, lambda _: 0.01)),
        "coverage": (coverage, of_shares(rng, coverage, lambda _: 0.8)),
        "calibration": (
            calibrated,
            of_confidences(rng, calibrated, lambda _: 1.0),
        ),
    }
    some = np.zeros(num, bool)
    for name, (holds, draw) in draws.items():
        limit = LIMITS[name]
        found = first_alarms(holds.prior, draw, length, num, limit)
        alarmed = np.isfinite(found)
        some |= alarmed
        yield [name, f"{1 / limit:.4f}", f"{alarmed.mean():.4f}"]
    yield ["any", "0.0500", f"{some.mean():.4f}"]


def delays(rng: np.random.Generator) -> Iterator[list]:
    """Delays of alarms after a change, by the count at which it begins."""
    risk, coverage = RiskHolds(0.01), CoverageHolds(0.78, 0.82)
    calibrated = CalibrationHolds(0.01)
    cases = {
        "risk, 1 % to 2 %": ("risk", risk, 0.01, 0.02),
        "risk, 1 % to 1.5 %": ("risk", risk, 0.01, 0.015),
        "risk, 1 % to 5 %": ("risk", risk, 0.01, 0.05),
        "calibration, temperature drifts by 1.3": (
            "calibration",
            calibrated,
            1.0,
            1.3,
        ),
        "coverage, 80 % to 75 %": ("coverage", coverage, 0.8, 0.75),
        "coverage, 80 % to 70 %": ("coverage", coverage, 0.8, 0.7),
    }
    for title, (name, holds, before, after) in cases.items():
        row = [title]
        for change in CHANGES:
            num = _NUM_DELAYS.value

            def value(block, change=change, before=before, after=after):
                return before if block * BLOCK < change else after

            kind = of_confidences if name == "calibration" else of_shares
            draw = kind(rng, holds, value)
            length = change + 60_000
            found = first_alarms(holds.prior, draw, length, num, LIMITS[name])
            delay = found[found > change] - change
            median, late = np.quantile(delay, [0.5, 0.95], method="higher")
            row.append(f"{median:,.0f} ({late:,.0f})")
        yield row


def speed(rng: np.random.Generator) -> Iterator[list]:
    """Seconds and sizes of a whole `Monitor`."""
    for batch in (1, 32, 1000):
        n = 2_000 if batch == 1 else 50_000
        confidence = rng.choice(LEVELS, n, p=SHARES)
        correct = rng.random(n) < confidence
        accepted = confidence > 0.6
        monitor = kc.Monitor(risk=0.05, coverage=(0.85, 0.95))
        start = time.perf_counter()
        for i in range(0, n, batch):
            part = slice(i, i + batch)
            monitor.update(confidence[part], accepted[part], correct[part])
        seconds = time.perf_counter() - start
        yield [f"batches of {batch}", f"{seconds / n * 1e6:.1f} us per answer"]
    monitor.update(rng.random(20_000), True, ids=range(20_000))
    state = monitor.state_dict().values()
    size = sum(np.asarray(x).nbytes for x in state)
    yield ["state, 20,000 answers waiting", f"{size / 1e6:.2f} MB"]


def peers(rng: np.random.Generator) -> Iterator[list]:
    """MAPIE's monitoring of a risk and `Monitor`, on the same streams.

    Both get the limit of 1 % and 2.5 % of false alarms, and see each outcome.
    """
    from mapie.exchangeability_testing import RiskMonitoring

    num, after = _NUM_DELAYS.value, 20_000
    for change in (0, 10_000):
        for later in (0.01, 0.02, 0.05):
            found, seconds = {"MAPIE": [], "Monitor": []}, {}
            for name in found:
                seconds[name] = 0.0
            for _ in range(num):
                share = np.repeat([0.01, later], [change, after])
                wrong = (rng.random(len(share)) < share).astype("int64")
                start = time.perf_counter()
                peer = RiskMonitoring(
                    "accuracy", test_level=0.05, threshold=0.01, warn=False
                )
                ones = np.ones_like(wrong)
                peer.update(1 - wrong, ones)
                bounds = peer.online_risk_lower_bound_sequence_history
                above = np.flatnonzero(bounds > 0.01)
                at = above[0] + 1 if len(above) else np.inf
                seconds["MAPIE"] += time.perf_counter() - start
                found["MAPIE"].append(at)
                start = time.perf_counter()
                monitor = kc.Monitor(risk=0.01, tolerance=None, alpha=0.025)
                alarms = monitor.update(None, ones, 1 - wrong).alarms
                at = alarms[0].num_outcomes if alarms else np.inf
                seconds["Monitor"] += time.perf_counter() - start
                found["Monitor"].append(at)
            for name, places in found.items():
                places = np.array(places)
                late = places[places > change] - change
                median = np.quantile(late, 0.5, method="higher")
                early = np.mean(places <= (change or -1))
                if later == 0.01:
                    early, median = np.mean(np.isfinite(places)), np.nan
                yield [
                    f"1 % to {later:.0%} at {change:,}, {name}",
                    f"{early:.3f}",
                    "" if np.isnan(median) else _delay(median, after),
                    f"{np.mean(np.isfinite(places)):.2f}",
                    f"{seconds[name] / num / (change + after) * 1e6:.1f}",
                ]


def _delay(median: float, after: int) -> str:
    return f"{median:,.0f}" if np.isfinite(median) else f"> {after:,}"


def alarms_part(rng: np.random.Generator) -> list[str]:
    return [
        f"False alarms in {_NUM_STREAMS.value:,} streams of "
        f"{_LENGTH.value:,} outcomes, with a look after every block of "
        f"{BLOCK}:",
        markdown_table(
            ["hypothesis", "allowed", "share with an alarm"], false_alarms(rng)
        ),
    ]


def delays_part(rng: np.random.Generator) -> list[str]:
    heads = ["change at", *(f"{x:,}" for x in CHANGES)]
    return [
        f"Median delay (and 95th percentile) of {_NUM_DELAYS.value} streams, "
        "in labelled accepted answers, labelled answers or answers:",
        markdown_table(heads, delays(rng)),
        "A whole `Monitor`, which looks after every answer:",
        markdown_table(["what", "measured"], speed(rng)),
    ]


def peer_part(rng: np.random.Generator) -> list[str]:
    heads = ["risk", "false alarms", "median delay", "alarmed", "us/answer"]
    mapie = importlib.metadata.version("mapie")
    return [
        f"`RiskMonitoring` of MAPIE {mapie} and `Monitor`, "
        f"{_NUM_DELAYS.value} streams each, limit 1 %, 2.5 % of false alarms "
        "allowed. Each stream goes on for 20,000 outcomes after the change:",
        markdown_table(heads, peers(rng)),
    ]


PARTS = {"alarms": alarms_part, "delays": delays_part, "peer": peer_part}


def main(_):
    rng = np.random.default_rng(_SEED.value)
    found = PARTS[_PART.value](rng)
    publish("\n\n".join(["# Monitoring", machine(), *found]), _OUT.value)


if __name__ == "__main__":
    app.run(main)
