"""Models that train in more than one pass, or answer from several."""

from keras_calib.models.adaptive_focal import AdaptiveFocalModel
from keras_calib.models.base import EpochModel
from keras_calib.models.cape import CaPEModel
from keras_calib.models.correctness import CorrectnessRankingModel
from keras_calib.models.dropout import MonteCarloDropout
from keras_calib.models.ensembles import DeepEnsemble
from keras_calib.models.focal_schedule import ScheduledFocalModel
from keras_calib.models.pruning import ConfidencePruningModel
from keras_calib.models.recording import RecordingModel
from keras_calib.models.sharpness import SharpnessAwareModel
from keras_calib.models.workers import fit_workers

__all__ = [
    "AdaptiveFocalModel",
    "CaPEModel",
    "ConfidencePruningModel",
    "CorrectnessRankingModel",
    "DeepEnsemble",
    "EpochModel",
    "MonteCarloDropout",
    "RecordingModel",
    "ScheduledFocalModel",
    "SharpnessAwareModel",
    "fit_workers",
]
