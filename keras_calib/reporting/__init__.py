"""One page that says how far a model's confidence can be trusted."""

from keras_calib.reporting.document import Report
from keras_calib.reporting.reports import report
from keras_calib.reporting.reports import report_of_predictions

__all__ = ["Report", "report", "report_of_predictions"]
