"""Facts of a threshold for another prior, or for mixtures of groups."""

from typing import NamedTuple

from keras_calib.selection.fact_tables import table_lines

__all__ = ["MixtureThreshold", "PriorThreshold"]


class PriorThreshold(NamedTuple):
    """A threshold with its coverage, risk and guarantee at another prior.

    Attributes:
        threshold: Least score to accept; -inf accepts everything.
        coverage: Accepted share at the target prior, by weights on the data.
        risk: Share of errors among the accepted at the target prior, likewise.
        num_samples: Number of samples of the classes that the target has.
        certified_risk: Upper bound of the true risk at the target prior with
            probability 1 - `delta`.
        delta: Probability that the guarantee fails.
        method: `"subsampling"` or `"betting"`.
        num_tested: Samples that tested the thresholds.
        effective_samples: Samples of equal weight that tell as much,
            (sum w)^2 / sum w^2.
        largest_weight: Weight of the rarest class relative to the target,
            with a mean of 1 over the samples.
        target_prior: Share of each class `(num_classes,)`.
        confidence: The threshold as a confidence in [0, 1], if the score is in
            log-odds; otherwise None.
    """

    threshold: float
    coverage: float
    risk: float
    num_samples: int
    certified_risk: float
    delta: float
    method: str
    num_tested: int
    effective_samples: float
    largest_weight: float
    target_prior: tuple
    confidence: float | None = None

    def __repr__(self) -> str:
        lines = [
            _head("PriorThreshold", self) + " at the target prior",
            f"with probability {1.0 - self.delta:.4g} the true risk at the "
            f"target prior is at most {self.certified_risk:.4g}",
            f"{self.num_samples:,} samples, worth "
            f"{self.effective_samples:,.0f} of equal weight (largest "
            f"{self.largest_weight:.3g}); {self.num_tested:,} of them tested "
            f"by {self.method}",
        ]
        return "\n  ".join(lines)


class MixtureThreshold(NamedTuple):
    """One threshold for all groups, with a guarantee for any mixture of them.

    Attributes:
        threshold: Least score to accept; -inf accepts everything.
        coverage: Accepted share of the data.
        risk: Share of errors among the accepted data.
        num_samples: Number of samples in the data.
        certified_risk: Upper bound of the true risk of every group, and so of
            every mixture of groups, with probability 1 - `delta`.
        delta: Probability that the guarantee fails.
        method: `"binomial"`.
        worst_group: The group of the highest risk on the data.
        worst_risk: Its share of errors among its accepted.
        worst_coverage: The least accepted share of any group.
        group: Ids or names of the groups, ascending.
        group_samples: Number of samples of each group.
        group_coverage: Accepted share of each group's data.
        group_risk: Share of errors among the accepted data of each group.
        confidence: The threshold as a confidence in [0, 1], if the score is in
            log-odds; otherwise None.
    """

    threshold: float
    coverage: float
    risk: float
    num_samples: int
    certified_risk: float
    delta: float
    method: str
    worst_group: int | str
    worst_risk: float
    worst_coverage: float
    group: tuple
    group_samples: tuple
    group_coverage: tuple
    group_risk: tuple
    confidence: float | None = None

    def __repr__(self) -> str:
        lines = [
            _head("MixtureThreshold", self),
            f"with probability {1.0 - self.delta:.4g} no mixture of the "
            f"{len(self.group)} groups has a true risk above "
            f"{self.certified_risk:.4g}",
        ]
        sizes = [f"{x:,}" for x in self.group_samples]
        table = table_lines(
            ("group", "samples", "coverage", "risk"),
            (self.group, sizes, self.group_coverage, self.group_risk),
        )
        return "\n".join(["\n  ".join(lines), *table])


def _head(name: str, chosen: PriorThreshold | MixtureThreshold) -> str:
    text = f"{name}: threshold {chosen.threshold:.4g}"
    if chosen.confidence is not None:
        text += f" (confidence {chosen.confidence:.4g})"
    return f"{text}, coverage {chosen.coverage:.4g}, risk {chosen.risk:.4g}"
