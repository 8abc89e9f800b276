"""One page that says how far a model's confidence can be trusted.

Lives here: the report, its page, the command line and the prediction files
that it reads. Not here: pictures (`plots`).
Floor: the highest, beside `monitoring`.
"""

from keras_calib.reporting.entry_points import report
from keras_calib.reporting.entry_points import report_of_predictions
from keras_calib.reporting.html import Report

__all__ = ["Report", "report", "report_of_predictions"]
