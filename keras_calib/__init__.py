"""Network calibration and selective classification for Keras 3.

Losses that calibrate during training, metrics that stream exactly, and what
repairs, judges and serves a model after training. Everything public is
importable from here, and from the package where it lives.
"""

from typing import TYPE_CHECKING

from keras_calib.backend.late import Whole
from keras_calib.inputs import config as config
from keras_calib.version import __version__

if TYPE_CHECKING:
    from keras_calib import (
        calibrators,
        data,
        detection,
        ensembles,
        exporting,
        functional,
        labels,
        losses,
        metrics,
        monitoring,
        plots,
        predictions,
        reporting,
        selection,
        text,
        training,
    )
    from keras_calib.calibrators import *
    from keras_calib.data import *
    from keras_calib.detection import *
    from keras_calib.ensembles import *
    from keras_calib.exporting import *
    from keras_calib.functional import *
    from keras_calib.labels import *
    from keras_calib.losses import *
    from keras_calib.metrics import *
    from keras_calib.monitoring import *
    from keras_calib.plots import *
    from keras_calib.predictions import *
    from keras_calib.reporting import *
    from keras_calib.selection import *
    from keras_calib.text import *
    from keras_calib.training import *

    __all__ = ["__version__"]
    __all__ += calibrators.__all__
    __all__ += data.__all__
    __all__ += detection.__all__
    __all__ += ensembles.__all__
    __all__ += exporting.__all__
    __all__ += functional.__all__
    __all__ += labels.__all__
    __all__ += losses.__all__
    __all__ += metrics.__all__
    __all__ += monitoring.__all__
    __all__ += plots.__all__
    __all__ += predictions.__all__
    __all__ += reporting.__all__
    __all__ += selection.__all__
    __all__ += text.__all__
    __all__ += training.__all__

else:
    # All at once where Keras is there, else when it comes or a name is used.
    # Help of the command, and what handles records, do without Keras.
    __getattr__, __dir__ = Whole(
        __name__,
        *("calibrators", "data", "detection", "ensembles"),
        *("exporting", "functional", "labels", "losses", "metrics"),
        *("monitoring", "plots", "predictions", "reporting", "selection"),
        *("text", "training"),
        of_records=(
            *("exporting", "monitoring", "predictions", "reporting"),
            "selection",
        ),
    ).hooks()
