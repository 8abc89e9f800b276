"""Pages of reports taken apart, and files of predictions to make them of."""

import functools
import json
from html.parser import HTMLParser

import numpy as np
from told import taking

import keras_calib as kc
from keras_calib.formulas import bootstrap
from keras_calib.plots.display import Display
from keras_calib.reporting import html


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


def report_of(labels, outputs, **options):
    """The report of arrays, or of a dict of outputs by the name of a model."""
    return taking(kc.report)(labels, outputs, **options)


def results_alone(monkeypatch):
    """Reports without their pages, which take longer than all numbers.

    Tests of intervals draw all replicates.
    """
    few_replicates(monkeypatch)
    monkeypatch.setattr(html, "template", lambda: None)
    monkeypatch.setattr(html, "page_of", lambda *_, **__: "")


def few_replicates(monkeypatch):
    """Bootstrap intervals of 20 replicates, most of the time of the numbers."""
    few = functools.partial(bootstrap.poisson_interval, num_draws=20)
    monkeypatch.setattr(bootstrap, "poisson_interval", few)


def pictures_left_out(monkeypatch):
    """Pages with empty pictures: to draw them takes most of a page's time."""
    empty = "<svg></svg>"
    monkeypatch.setattr(Display, "to_svg", lambda self, size=None: empty)


def slider(page):
    """The rows of every slider of a page."""
    boxes = [a for a in page.all("div") if a.get("class") == "slider"]
    columns = [json.loads(box["data-steps"]) for box in boxes]
    return [
        [
            dict(zip(x, row, strict=True))
            for row in zip(*x.values(), strict=True)
        ]
        for x in columns
    ]


def slider_start(page):
    """The row where the only slider of a page starts."""
    ((rows,), (bar,)) = slider(page), page.all("input")
    return rows[int(bar["value"])]


def mistakes(page):
    """Numbers of the samples that are shown as mistakes."""
    return [int(a["data-sample"]) for _, a in page.tags if "data-sample" in a]


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
