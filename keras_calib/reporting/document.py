"""The report as a file and as numbers."""

from pathlib import Path
from typing import Any

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import replacing

__all__ = ["Report", "check_html"]


class Report:
    """A page about the confidence of one or several models.

    Made by `report` and `report_of_predictions`. Notebooks show it.

    Args:
        html: The page: one file that needs nothing else.
        results: `{model: {...}}` of what the page says: `verdict`,
            `overconfidence` (mean confidence less accuracy), `metrics` and
            `calibrated_metrics` by name, and `selection`, of which
            `threshold` is a score and `confidence` the same cut as a
            confidence, or None for another score. Each estimate is
            `{"value", "low", "high"}` with its 95 % interval.

    Example:

    >>> import keras_calib
    >>> page = keras_calib.report_of_predictions(
    ...     [0, 1, 1], [[0.9, 0.1]] * 3, verbose=0)
    >>> round(page.results["model"]["overconfidence"]["value"], 4)
    0.5667

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        https://arxiv.org/abs/1706.04599
    """

    def __init__(self, html: str, results: dict[str, Any]):
        self.html = html
        self.results = results

    def save(self, path: Any) -> Path:
        """Writes the page, whole or not at all.

        Args:
            path: Of the file, which ends in `.html`; its folder is made if
                it is not there.

        Returns:
            The path.

        Raises:
            ValueError: If the path has another ending, or is a folder.
        """
        path = check_html(path)
        with replacing(path, text=True) as file:
            file.write(self.html)
        return path

    def _repr_html_(self) -> str:
        uri = self.html.replace("&", "&amp;").replace('"', "&quot;")
        return (
            f'<iframe srcdoc="{uri}" sandbox="allow-scripts" '
            'style="width:100%;height:800px;border:0"></iframe>'
        )


def check_html(path: Any) -> Path:
    """The path of a page to write; ValueError if it can be none."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise value_error(
            "`path` must end in .html: a report is a web page, which a "
            "browser prints to PDF",
            path=str(path),
        )
    if path.is_dir():
        raise value_error("`path` must be a file, not a folder", path=str(path))
    return path
