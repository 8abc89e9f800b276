"""One page that says how far a model's confidence can be trusted.

Lives here: the report, its page, the command line and the prediction files
that it reads. Not here: diagrams (`plots`).
Floor: the highest, above `monitoring`: a command may use every package.

Read in this order:

- `entry_points`: `report` and `report_of_predictions`, from data to page.
  `blocks` joins small batches on the way.
- Figures: `evaluation` gathers them batch by batch, with `groups` (classes,
  levels of confidence) and `annotators` (votes). `measures`, `verdict` and
  `slider` say what the page tells of them.
- Several labels at once: `label_report` takes the place of
  `report_of_batches`, with `label_evaluation`, `label_sums`, `label_verdict`
  and `label_page`.
- Page: `html` fills the templates `page.*.jinja`, with `pictures`.
- Command line: `command_line`, and `commands` with a module for each command.
- `cards`: the model card of an export, from its certificate.
- `prediction_files`: labels and predictions from files.
"""

from typing import TYPE_CHECKING

from keras_calib.backend.late import late_names

if TYPE_CHECKING:
    from keras_calib.reporting.cards import model_card
    from keras_calib.reporting.entry_points import report, report_of_predictions
    from keras_calib.reporting.html import Report

__all__ = [
    "Report",
    "model_card",
    "report",
    "report_of_predictions",
]

__getattr__ = late_names(
    __name__,
    {
        "cards": "model_card",
        "entry_points": "report report_of_predictions",
        "html": "Report",
    },
)
