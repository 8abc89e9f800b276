"""What the laws need to know of a loss."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class LossCase:
    """A loss with hyperparameters that make every part of it active."""

    name: str
    cls: type
    fn: Callable
    hyperparameters: dict = field(default_factory=dict)
    # Hyperparameters under which it is cross entropy.
    limit: dict | None = None
    shift_invariant: bool = True
    soft_labels: bool = True
    # Linear in the label, as cross entropy plus a term without labels.
    linear: bool = True
    # The value of a sample depends on the others.
    batch_coupled: bool = False
    # Labels are pairs of class id and objectness.
    objectness: bool = False
    # Golden name -> golden hyperparameter id -> hyperparameters.
    goldens: dict = field(default_factory=dict)

    def __str__(self):
        return self.name

    def make(self, **kwargs):
        options = {"from_logits": True, **self.hyperparameters, **kwargs}
        fidelity = options.get("fidelity")
        if isinstance(fidelity, functools.partial):
            shared = ("from_logits", "axis", "ignore_class", "reduction")
            shared = {k: options[k] for k in shared if k in options}
            options["fidelity"] = fidelity(**shared)
        return self.cls(**options)

    def labels(self, ids):
        """Class ids in the form that the loss takes."""
        if not self.objectness:
            return ids
        rng = np.random.default_rng(7)
        share = rng.uniform(size=np.shape(ids))
        return np.stack([ids, share], axis=-1).astype("float64")

    def values(self, labels, logits):
        """Values per sample of the function, from soft labels."""
        if self.batch_coupled:
            return self.make(reduction="none").call(labels, logits)
        options = dict(self.hyperparameters)
        if self.objectness:
            rng = np.random.default_rng(7)
            options["objectness"] = rng.uniform(size=np.shape(labels)[:-1])
        return self.fn(labels, logits, **options)
