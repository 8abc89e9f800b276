"""A Bayesian comparison of methods over set-ups and seeds at once.

For one method and one measure, with the differences d to the baseline on seed i
of set-up s in units of their root mean square:

    d[s, i] ~ Normal(effect[s], sigma[s])
    effect[s] ~ Normal(mean, spread)
    mean ~ Normal(0, 2), spread ~ Exponential(1)
    log sigma[s] ~ Normal(log sigma, 1), sigma ~ Exponential(1)

The set-ups learn from each other, the more the less they differ. The unit makes
the priors weak: neither mean nor deviations are much above 1 in it. A single
set-up has no spread: the mean is its effect, and sigma its sigma.

Mean and effects have normal posteriors given the deviations. Only these are
sampled, by NUTS, for all methods and measures at once.

The model is that of Corani, Benavoli, Demsar, Mangili and Zaffalon,
"Statistical comparison of classifiers through Bayesian hierarchical modelling",
Machine Learning 106, 2017. There are two differences. Effects are normal in
place of Student's, which few set-ups cannot distinguish, and seeds replace
folds, because they are independent. The region of practical equivalence is that
of Benavoli, Corani, Demsar and Zaffalon, "Time for a change", JMLR 18, 2017.
"""

import itertools
from typing import NamedTuple

import numpy as np
from absl import app

from results.runs import rises

# Of the mean and of log sigma[s], in units.
_MEAN, _LOG_SIGMA = 2.0, 1.0
# No noise of seeds is taken to be smaller, in units.
_LEAST = 1e-3
# What draws must be, for tables with two decimals.
_MOST_RHAT, _LEAST_ESS = 1.01, 1000
_TEXT = (
    "Cells: P(better) / P(practically equal) / P(worse) than {baseline} on a "
    "set-up, by the mean over set-ups, and on a further one like these. "
    "Practically equal: not further apart than {ropes}. Priors in units of the "
    "root mean square of a method's differences: mean Normal(0, 2), spread of "
    "set-ups and deviation of seeds Exponential(1), that of each set-up "
    "log-normal around it. {draws} draws; R-hat at most {rhat:.3f}, effective "
    "draws {ess:.0f} at least."
)


class Posterior(NamedTuple):
    """Draws, and how well they were made.

    Attributes:
        mean: Mean difference over set-ups, `(draws, problems)`.
        further: Difference on a further set-up like these, `(draws,
            problems)`.
        effects: Difference on each set-up, `(draws, problems, setups)`.
        rhat: Largest potential scale reduction of mean, effects and
            deviations, `(problems,)`.
        ess: Smallest effective number of draws of them, `(problems,)`.
    """

    mean: np.ndarray
    further: np.ndarray
    effects: np.ndarray
    rhat: np.ndarray
    ess: np.ndarray


def check_installed():
    """Raises ImportError without TensorFlow Probability."""
    try:
        import tensorflow_probability  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "--model=hierarchical needs TensorFlow Probability: "
            'pip install -e ".[bayes]"'
        ) from error


def posterior(gaps, *, units=None, chains=4, draws=1500, warm_up=500, seed=0):
    """What differences say of the means and effects behind them.

    Args:
        gaps: `gaps[problem][setup]`: differences of two seeds and more, or
            none where a problem has no such set-up.
        units: `(problems,)`, of the priors; by default the root mean squares.
        chains: Independent chains.
        draws: Draws of each chain that are kept.
        warm_up: Draws of each chain before them, which find the step size.
        seed: Seed of the draws.
    """
    if units is None:
        units = [
            # Differences that are all 0 are so in any unit.
            np.sqrt(np.mean(np.square(np.concatenate(rows)))) or 1e-12
            for rows in gaps
        ]
    units = np.asarray(units, float)[:, None]
    counts = np.array([[len(x) for x in rows] for rows in gaps], float)
    means = np.array([[np.mean(x) if len(x) else 0 for x in r] for r in gaps])
    noise = np.array([[np.var(x) if len(x) else 0 for x in r] for r in gaps])
    model = _Deviations(counts, means / units, counts * noise / units**2)
    state = _sample(model, chains, draws, warm_up, seed)
    spread, sigma = (x.numpy() for x in model.scales(state))
    spread, noise = spread[..., None], sigma**2 / np.maximum(counts, 1)
    rng = np.random.default_rng(seed)
    mean, precision = (x.numpy() for x in model.mean(spread, noise))
    mean = mean + rng.standard_normal(mean.shape) / np.sqrt(precision)
    # Between the mean of all set-ups and what the own seeds say.
    total = spread**2 + noise
    effects = (spread**2 * model.means + noise * mean[..., None]) / total
    error = spread * np.sqrt(noise / total)
    effects += rng.standard_normal(error.shape) * error
    further = mean + rng.standard_normal(mean.shape) * spread[..., 0]
    parts = [state.numpy(), mean[..., None], effects]
    rhat, ess = _quality(np.concatenate(parts, axis=-1))
    flat = (-1, len(units))
    return Posterior(
        mean.reshape(flat) * units[:, 0],
        further.reshape(flat) * units[:, 0],
        effects.reshape(*flat, counts.shape[1]) * units,
        rhat,
        ess,
    )


def read_ropes(texts, measures):
    """`{measure: half width}` of `["0.01", "nll=0.02"]`; by default 0.005.

    Raises:
        app.UsageError: If a text is neither a number that is not negative nor
            such a number of one of the measures.
    """
    ropes = dict.fromkeys(measures, 0.005)
    for text in sorted(texts, key=lambda text: "=" in text):
        name, _, value = text.rpartition("=")
        try:
            width = float(value)
        except ValueError:
            width = -1.0
        if not 0 <= width < np.inf or (name and name not in ropes):
            raise app.UsageError(
                "--rope must hold numbers >= 0, for all of --measures or for "
                f"one, as in 0.005,nll=0.02. Received: {text}"
            )
        ropes.update(dict.fromkeys([name] if name else ropes, width))
    return ropes


def report(setups, ropes, baseline, *, draws=1500):
    """Markdown: a table for each measure, with a row for each method.

    Args:
        setups: `{set-up: {method: {seed: row}}}`.
        ropes: As of `read_ropes`: its measures are compared.
        baseline: Name of the method the others are compared with.
        draws: As of `posterior`.

    Raises:
        app.UsageError: If no method has two seeds with the baseline.
    """
    gaps, single = _problems(setups, ropes, baseline)
    known = [any(found) for found in zip(*gaps.values(), strict=True)]
    setups = list(itertools.compress(setups, known))
    gaps = {
        key: list(itertools.compress(rows, known)) for key, rows in gaps.items()
    }
    found = posterior(list(gaps.values()), draws=draws)
    lines = []
    for measure, rope in ropes.items():
        names = ["mean difference, 90 %", *setups, "all set-ups", "further one"]
        lines += [f"### {measure}", "", f"| method | {' | '.join(names)} |"]
        lines += ["|---" * (len(names) + 1) + "|"]
        for at, ((of, method), rows) in enumerate(gaps.items()):
            if of != measure:
                continue
            mean = found.mean[:, at]
            low, high = np.quantile(mean, [0.05, 0.95])
            cells = [f"{mean.mean():+.4f} [{low:+.4f}, {high:+.4f}]"]
            drawn = [
                found.effects[:, at, place] if len(x) else None
                for place, x in enumerate(rows)
            ]
            drawn.append(mean)
            several = sum(len(x) > 0 for x in rows) > 1
            drawn.append(found.further[:, at] if several else None)
            cells += [_shares(x, rope, rises(measure)) for x in drawn]
            lines.append(f"| {method} | {' | '.join(cells)} |")
        lines.append("")
    rhat, ess = found.rhat.max(), found.ess.min()
    text = _TEXT.format(
        baseline=baseline,
        ropes=", ".join(f"{rope:g} ({name})" for name, rope in ropes.items()),
        draws=len(found.mean),
        rhat=rhat,
        ess=ess,
    )
    if rhat > _MOST_RHAT or ess < _LEAST_ESS:
        text += (
            f" Not converged: R-hat must be at most {_MOST_RHAT}, effective "
            f"draws {_LEAST_ESS} at least. Use more than --draws={draws}."
        )
    if single:
        text += f" Left out, with one seed: {', '.join(single)}."
    return "\n".join([*lines, text])


def _problems(setups, measures, baseline):
    """`{(measure, method): gaps of set-ups}`, and what has one seed alone."""
    gaps = {
        (measure, method): [
            _gaps(methods, method, baseline, measure)
            for methods in setups.values()
        ]
        for measure in measures
        for method in dict.fromkeys(m for rows in setups.values() for m in rows)
        if method != baseline
    }
    single = sorted(
        {
            f"{method} on {setup}"
            for (_, method), rows in gaps.items()
            for setup, found in zip(setups, rows, strict=True)
            if len(found) == 1
        }
    )
    gaps = {
        key: [x if len(x) > 1 else [] for x in rows]
        for key, rows in gaps.items()
        if any(len(x) > 1 for x in rows)
    }
    if not gaps:
        raise app.UsageError(
            "--model=hierarchical must have a method with two seeds at least "
            f"that --baseline={baseline} has too, on one set-up. Train more "
            f"seeds. Received: {', '.join(single) or 'no method'} with one seed"
        )
    return gaps, single


def _gaps(methods, method, baseline, measure):
    """Differences on the seeds that both have."""
    first, second = (
        {
            seed: row[measure]
            for seed, row in methods.get(name, {}).items()
            if not row["diverged"] and np.isfinite(row.get(measure, np.nan))
        }
        for name in (method, baseline)
    )
    return [first[s] - second[s] for s in first if s in second]


def _shares(gaps, rope, rising):
    """Of draws that are better, as good, and worse."""
    if gaps is None:
        return "-"
    better = np.mean(gaps > rope if rising else gaps < -rope)
    worse = np.mean(gaps < -rope if rising else gaps > rope)
    return f"{better:.2f} / {1 - better - worse:.2f} / {worse:.2f}"


class _Deviations:
    """Their density, with mean and effects integrated out.

    A state is `(..., problems, 2 + setups)` numbers that are standard normal a
    priori: spread, sigma and sigma of each set-up beside that.
    """

    def __init__(self, counts, means, squares):
        self.counts, self.means, self.squares = counts, means, squares
        self.known = (counts > 0).astype(float)
        self.several = (self.known.sum(axis=-1) > 1).astype(float)

    def scales(self, state):
        """Spread `(..., problems)` and sigma `(..., problems, setups)`."""
        import tensorflow as tf
        import tensorflow_probability as tfp

        # Exponential(1) from a normal number.
        normal = tfp.distributions.Normal(np.float64(0.0), np.float64(1.0))
        spread, sigma = (-normal.log_cdf(-state[..., at]) for at in (0, 1))
        own = self.several[:, None] * _LOG_SIGMA * state[..., 2:]
        own = sigma[..., None] * tf.exp(own)
        return self.several * spread, tf.sqrt(own**2 + _LEAST**2)

    def mean(self, spread, noise):
        """Mean and precision of the mean, given `noise` of means of seeds."""
        import tensorflow as tf

        weights = self.known / (spread**2 + noise)
        precision = _MEAN**-2 + tf.reduce_sum(weights, axis=-1)
        mean = tf.reduce_sum(weights * self.means, axis=-1) / precision
        return mean, precision

    def log_density(self, state):
        """Of a state, up to a constant."""
        import tensorflow as tf

        spread, sigma = self.scales(state)
        spread, noise = spread[..., None], sigma**2 / np.maximum(self.counts, 1)
        mean, precision = self.mean(spread, noise)
        total = spread**2 + noise
        setups = self.known * (tf.math.log(total) + self.means**2 / total)
        degrees = np.maximum(self.counts - 1, 0)
        seeds = 2 * degrees * tf.math.log(sigma) + self.squares / sigma**2
        return -0.5 * (
            tf.reduce_sum(setups + seeds, axis=-1)
            + tf.reduce_sum(state**2, axis=-1)
            - precision * mean**2
            + tf.math.log(precision)
        )


def _sample(model, chains, draws, warm_up, seed):
    """States, `(draws, chains, problems, 2 + setups)`."""
    import tensorflow as tf
    import tensorflow_probability as tfp

    problems, setups = model.counts.shape
    start = np.random.default_rng(seed).normal(
        0.0, 0.5, (chains, problems, 2 + setups)
    )
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
        tfp.mcmc.NoUTurnSampler(
            model.log_density,
            # One for each problem, the same in all chains.
            step_size=tf.fill((1, problems, 1), tf.constant(0.5, tf.float64)),
            max_tree_depth=5,
        ),
        num_adaptation_steps=int(0.8 * warm_up),
        target_accept_prob=0.8,
    )

    @tf.function(autograph=False, jit_compile=True)
    def run():
        return tfp.mcmc.sample_chain(
            draws,
            current_state=tf.constant(start),
            kernel=kernel,
            num_burnin_steps=warm_up,
            trace_fn=None,
            seed=[seed, 0],
        )

    return run()


def _quality(draws):
    """R-hat and effective number of a problem: the worst of its numbers."""
    import tensorflow_probability as tfp

    rhat = tfp.mcmc.potential_scale_reduction(
        draws, independent_chain_ndims=1, split_chains=True
    )
    ess = tfp.mcmc.effective_sample_size(draws, cross_chain_dims=1)
    return rhat.numpy().max(axis=-1), ess.numpy().min(axis=-1)
