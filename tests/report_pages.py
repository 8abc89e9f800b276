"""Pages of reports taken apart, and files of predictions to make them of."""

import json
from html.parser import HTMLParser

import numpy as np

from keras_calib.reporting import entry_points

__all__ = ["Page", "results_alone", "slider", "write_file"]


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of scripts."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self._silent = [], "", False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._silent = tag in ("script", "style")

    def handle_endtag(self, tag):
        self._silent = False

    def handle_data(self, data):
        if not self._silent:
            self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def results_alone(monkeypatch):
    """Reports without their pages, which take longer than all numbers."""
    monkeypatch.setattr(entry_points, "page_of", lambda *_, **__: "")


def slider(page):
    boxes = [a for a in page.all("div") if a.get("class") == "slider"]
    return [json.loads(box["data-steps"]) for box in boxes]


def write_file(path, labels, **arrays):
    """The same predictions in each format."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    if path.suffix == ".npz":
        np.savez(path, labels=labels, **arrays)
        return path
    ((name, values),) = arrays.items()
    if path.name.startswith("lists"):
        columns = {"label": labels, name: list(values)}
    else:
        columns = {
            f"{name.rstrip('s')}_{k}": values[:, k]
            for k in reversed(range(values.shape[-1]))
        }
        columns["label"] = labels
    table = pa.table(columns)
    if path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    else:
        pa.parquet.write_table(table, path)
    return path
