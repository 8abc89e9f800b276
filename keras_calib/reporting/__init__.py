"""One page that says how far a model's confidence can be trusted.

- Tables: `evaluate`, `MetricTable`; `Runs` of models over seeds.
- Pages: `report`, `ReportPage`, `model_card`.

Lives here: the report, its page, and the command line. Not here: diagrams
(`plots`), and files of predictions (`predictions`).
Floor: the highest, above `monitoring`: a command may use every package.

Read in this order:

- `html`: `report`, from data to page; `metric_table`: `evaluate`, the same
  numbers as a table. `gathering` reads the rows for both, and joins small
  batches. `runs` compares models that were trained with several seeds.
- Figures: `evaluation` gathers them batch by batch, with `groups` (classes,
  levels of confidence, sites); `labels` does so for several labels at once.
  `measures` and `verdict` say what the page tells of them.
- Page: `page.html.jinja` has the questions and macros of a kind in
  `classes.html.jinja` or `labels.html.jinja`; `sections` and `pictures` make
  what these show.
- Command line: `command_line`, and `commands` with a module for each command.
- `cards`: the model card of an export, from its certificate.
"""

from typing import TYPE_CHECKING

from keras_calib.backend.late import late_names

if TYPE_CHECKING:
    from keras_calib.reporting.cards import model_card
    from keras_calib.reporting.html import ReportPage, report
    from keras_calib.reporting.metric_table import MetricTable, evaluate
    from keras_calib.reporting.runs import Runs

__all__ = [
    "MetricTable",
    "ReportPage",
    "Runs",
    "evaluate",
    "model_card",
    "report",
]

__getattr__ = late_names(
    __name__,
    {
        "cards": "model_card",
        "html": "ReportPage report",
        "metric_table": "MetricTable evaluate",
        "runs": "Runs",
    },
)
