"""Predictors that average several networks or several dropout passes.

- Models: `DeepEnsemble`, `MonteCarloDropout`.

Lives here: deep ensembles, Monte Carlo dropout and the model class that both
share. Not here: how members are trained (`training`).
Floor: beside `losses`, `metrics`, `calibrators` and `data`.
"""

from keras_calib.ensembles.deep_ensemble import DeepEnsemble
from keras_calib.ensembles.dropout import MonteCarloDropout

__all__ = ["DeepEnsemble", "MonteCarloDropout"]
