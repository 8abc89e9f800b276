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

The other parts are `delays`, `speed`, and `peer`, which needs MAPIE. All but
`speed` take minutes on one CPU core. The speed is CPU time, so that other
processes do not slow it.
"""

import importlib.metadata
import time
from collections.abc import Callable, Iterator

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish

import keras_calib as kc
from keras_calib.formulas.evidence import log_evidence, start_mass, with_block
from keras_calib.monitoring.watch import (
    BLOCK,
    HORIZON,
    SCALE,
    CalibrationHolds,
    CoverageHolds,
    RiskHolds,
)

_NUM_STREAMS = flags.DEFINE_integer("num_streams", 2000, "Without a change.")
_LENGTH = flags.DEFINE_integer("length", 1_000_000, "Outcomes of a stream.")
_NUM_DELAYS = flags.DEFINE_integer("num_delays", 400, "Streams of a delay.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_PART = flags.DEFINE_enum(
    "part", "alarms", ["alarms", "delays", "speed", "peer"], "What to measure."
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
    """CPU seconds and sizes of a whole `Monitor`."""
    for batch in (1, 32, 1000):
        n = 2_000 if batch == 1 else 50_000
        confidence = rng.choice(LEVELS, n, p=SHARES)
        correct = rng.random(n) < confidence
        accepted = confidence > 0.6
        monitor = kc.Monitor(risk=0.05, coverage=(0.85, 0.95))
        start = time.process_time()
        for i in range(0, n, batch):
            part = slice(i, i + batch)
            monitor.update(confidence[part], accepted[part], correct[part])
        seconds = time.process_time() - start
        yield [f"batches of {batch}", f"{seconds / n * 1e6:.1f} us per answer"]
    monitor.update(rng.random(20_000), True, ids=range(20_000))
    state = monitor.state_dict().values()
    size = sum(np.asarray(x).nbytes for x in state)
    yield ["state, 20,000 answers waiting", f"{size / 1e6:.2f} MB"]


def of_peer(wrong: np.ndarray, risk: float, batch: int) -> float:
    """Outcomes until the alarm of MAPIE's monitoring, inf without one."""
    from mapie.exchangeability_testing import RiskMonitoring

    peer = RiskMonitoring(
        "accuracy", test_level=0.05, threshold=risk, warn=False
    )
    for start in range(0, len(wrong), batch):
        part = wrong[start : start + batch]
        peer.update(1 - part, np.ones_like(part))
    # What an earlier update has found stays in its history.
    above = peer.online_risk_lower_bound_sequence_history > risk
    return np.argmax(above) + 1 if above.any() else np.inf


def of_monitor(wrong: np.ndarray, risk: float, batch: int) -> float:
    """The same of `Monitor`, for the same share of false alarms."""
    monitor = kc.Monitor(risk=risk, tolerance=None, delta=0.025)
    for start in range(0, len(wrong), batch):
        part = wrong[start : start + batch]
        monitor.update(None, np.ones_like(part), 1 - part)
    alarms = monitor.alarms
    return alarms[0].num_outcomes if alarms else np.inf


def beside(
    streams: list[np.ndarray], risks: list[float], batch: int, change: int
) -> Iterator[list]:
    """Rows of both: early alarms, median delay, alarms, time per answer."""
    for name, way in (("MAPIE", of_peer), ("Monitor", of_monitor)):
        start = time.process_time()
        found = np.array(
            [way(*x, batch) for x in zip(streams, risks, strict=True)]
        )
        seconds = time.process_time() - start
        early = np.mean(found <= change) if change else 0.0
        late = found[found > change] - change
        delay = np.quantile(late, 0.5, method="higher")
        most = f"> {len(streams[0]) - change:,}"
        yield [
            name,
            f"{early:.3f}",
            f"{delay:,.0f}" if np.isfinite(delay) else most,
            f"{np.mean(np.isfinite(found)):.3f}",
            f"{seconds / sum(map(len, streams)) * 1e6:,.1f}",
        ]


def peers(rng: np.random.Generator) -> Iterator[list]:
    """Both on streams of errors, each given in one update."""
    num = _NUM_DELAYS.value
    cases = [(0, 0.01, 10_000, 4 * num)]
    cases += [(c, p, 20_000, num) for c in (0, 10_000) for p in (0.02, 0.05)]
    for change, later, after, streams in cases:
        share = np.repeat([0.01, later], [change, after])
        wrong = [
            (rng.random(len(share)) < share).astype("int64")
            for _ in range(streams)
        ]
        title = f"1 % to {later * 100:.0f} % at {change:,}"
        if later == 0.01:
            title = "1 % throughout"
        for row in beside(wrong, [0.01] * streams, len(share), change):
            yield [f"{title}, {row[0]}", streams, f"{len(share):,}", *row[1:]]


def example(rng: np.random.Generator) -> Iterator[list]:
    """Both on the data of MAPIE's own example, in its batches of 25.

    Two classes are normal in two dimensions with the variance 1/2, around
    (0, 0) and (1.8, 1.8). In the second half of 800 answers both means move
    by about (0, -7.4), at once or step by step.
    """
    from sklearn.linear_model import LogisticRegression

    before = np.array([[0.0, 0.0], [1.8, 1.8]])
    after = np.array([[0.0, -7.5], [1.8, -5.5]])

    def draw(moved: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, 2, len(moved))
        mean = before[y] + moved[:, None] * (after - before)[y]
        return mean + np.sqrt(0.5) * rng.normal(size=mean.shape), y

    steps = np.linspace(0.0, 1.0, 400)
    shifts = {"none": 0.0 * steps, "abrupt": 1.0 + 0.0 * steps, "slow": steps}
    still = np.zeros(1000)
    margin = np.sqrt(np.log(1.0 / 0.025) / 2.0 / len(still))
    for title, shift in shifts.items():
        streams, risks = [], []
        for _ in range(_NUM_DELAYS.value):
            network = LogisticRegression().fit(*draw(still))
            x, y = draw(still)
            # The limit of the example: a bound of the risk, and 0.05.
            error = np.mean(network.predict(x) != y)
            risks.append(float(error + margin + 0.05))
            x, y = draw(np.append(np.zeros(400), shift))
            streams.append((network.predict(x) != y).astype("int64"))
        change = 0 if title == "none" else 400
        for row in beside(streams, risks, 25, change):
            yield [f"{title}, {row[0]}", *row[1:]]


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
    ]


def speed_part(rng: np.random.Generator) -> list[str]:
    return [
        "CPU time of a whole `Monitor` of all three hypotheses, which looks "
        "after every answer, and its size:",
        markdown_table(["what", "measured"], speed(rng)),
    ]


def peer_part(rng: np.random.Generator) -> list[str]:
    heads = ["alarms before it", "median delay", "alarms", "us/answer"]
    mapie = importlib.metadata.version("mapie")
    return [
        f"`RiskMonitoring` of MAPIE {mapie} and `Monitor`, on the same "
        "streams. Both allow 2.5 % of false alarms of the risk.",
        "Delays are in outcomes after the change. The limit is 1 %, and each "
        "stream is one update:",
        markdown_table(["risk", "streams", "length", *heads], peers(rng)),
        "The limits and the data of MAPIE's example of monitoring, "
        f"{_NUM_DELAYS.value} times: 800 answers in updates of 25, of which "
        "the second 400 shift. `RiskMonitoring` reads its whole history again "
        "in each update:",
        markdown_table(["shift", *heads], example(rng)),
    ]


PARTS = {
    "alarms": alarms_part,
    "delays": delays_part,
    "speed": speed_part,
    "peer": peer_part,
}


def main(_):
    rng = np.random.default_rng(_SEED.value)
    found = PARTS[_PART.value](rng)
    publish("\n\n".join(["# Monitoring", machine(), *found]), _OUT.value)


if __name__ == "__main__":
    app.run(main)
