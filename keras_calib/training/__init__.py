"""Models with training steps of their own, and backups that resume a run.

- Models: `AdaptiveFocalModel`, `ScheduledFocalModel`, `CaPEModel`,
  `CorrectnessRankingModel`, `ConfidencePruningModel`, `SharpnessAwareModel`.
- Backups: `ResumableBackup`, `finished_epochs`, `save_training_state`,
  `load_training_state`.
- Bases: `EpochModel`, `RecordingModel`.

Lives here: custom training steps, records of samples, backups that resume a
run. Not here: losses (`losses`) and models that
only predict (`ensembles`).
Floor: above `losses`, `metrics` and `data`, beside `selection`.
"""

from keras_calib.training.backup import (
    ResumableBackup,
    finished_epochs,
    load_training_state,
    save_training_state,
)
from keras_calib.training.cape import CaPEModel
from keras_calib.training.crl import CorrectnessRankingModel
from keras_calib.training.epoch_model import EpochModel
from keras_calib.training.focal import AdaptiveFocalModel, ScheduledFocalModel
from keras_calib.training.pruning import ConfidencePruningModel
from keras_calib.training.recording_model import RecordingModel
from keras_calib.training.sharpness_aware import SharpnessAwareModel

__all__ = [
    "AdaptiveFocalModel",
    "CaPEModel",
    "ConfidencePruningModel",
    "CorrectnessRankingModel",
    "EpochModel",
    "RecordingModel",
    "ResumableBackup",
    "ScheduledFocalModel",
    "SharpnessAwareModel",
    "finished_epochs",
    "load_training_state",
    "save_training_state",
]
