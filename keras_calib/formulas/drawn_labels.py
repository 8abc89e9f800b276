"""Labels that calibrated predictions would have: one each, or votes."""

from typing import NamedTuple, Self

import numpy as np

__all__ = ["DrawnLabels", "intraclass_correlation"]


class DrawnLabels(NamedTuple):
    """Shares of correct labels if confidences are right, for resampling.

    With one label for each sample it is correct with the probability c. With n
    votes their number is beta-binomial: it has the mean n c and the intraclass
    correlation rho. Then

    Var(share) = c (1 - c) (1 + (n - 1) rho) / n

    Derivation: docs/derivations.md, 'Votes'.

    Attributes:
        confidence: Confidence c of each sample, `(n,)`.
        votes: Number of votes for each sample, `(n,)`. None for one label.
        correlation: Intraclass correlation rho of the votes, in [0, 1].
    """

    confidence: np.ndarray
    votes: np.ndarray | None = None
    correlation: float = 0.0

    @property
    def variance(self) -> np.ndarray:
        """Variance of the share of correct labels of each sample, `(n,)`."""
        of_labels = self.confidence * (1.0 - self.confidence)
        if self.votes is None:
            return of_labels
        return of_labels * (
            self.correlation + (1.0 - self.correlation) / self.votes
        )

    def ordered(self, order: np.ndarray) -> Self:
        """The same with its samples in another order."""
        votes = None if self.votes is None else self.votes[order]
        return self._replace(confidence=self.confidence[order], votes=votes)

    def draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        """Shares of correct labels, `(rows, n)`."""
        size = rows, len(self.confidence)
        if self.votes is None:
            return rng.random(size) < self.confidence
        agree = np.broadcast_to(self.confidence, size)
        if self.correlation >= 1.0:
            return rng.random(size) < agree
        if self.correlation > 0.0:
            both = (1.0 - self.correlation) / self.correlation
            # Certain predictions have no distribution of their own.
            inside = np.clip(self.confidence, 1e-9, 1.0 - 1e-9)
            drawn = rng.beta(both * inside, both * (1.0 - inside), size)
            certain = (self.confidence == 0.0) | (self.confidence == 1.0)
            agree = np.where(certain, agree, drawn)
        return rng.binomial(self.votes, agree) / self.votes


def intraclass_correlation(
    confidence: np.ndarray, share: np.ndarray, votes: np.ndarray
) -> float:
    """How much alike the votes for one sample are, beyond its confidence.

    0 if annotators vote independently with the probability c = `confidence`,
    and 1 if they all agree. With the share s of n votes it is

    rho = sum e / sum c (1 - c),  e = s (n s - 1) / (n - 1) - 2 c s + c^2

    over samples of several votes. e is the mean of (x - c) (y - c) over pairs
    x, y of a sample's votes, 1 if correct. So its mean is (q - c)^2 if
    annotators agree with the probability q.

    Derivation: docs/derivations.md, 'Votes'.
    """
    several = votes > 1
    c, s, n = confidence[several], share[several], votes[several]
    total = float(np.sum(c * (1.0 - c)))
    if total == 0.0:
        return 0.0
    pairs = s * (n * s - 1.0) / (n - 1.0)
    return float(np.clip(np.sum(pairs - 2.0 * c * s + c**2) / total, 0.0, 1.0))
