"""Recomputes every number of the tables of docs/results.md from the runs.

    python benchmarks/results_page.py

prints how many cells it recomputed, and fails if one is not what the CSV files
of `benchmarks/results/runs` and `published.csv` say. Before each table the page
says where it is from, in a comment:

    <!-- table: file=camvid.csv; rows=acls | mbls; columns=accuracy | ece -->

`rows` are names of runs in the order of the table; `name/_ts` is the same runs
with measures that end so. `columns` are measures, `measure@file` of another
file, `options` for a hyperparameter of the run, `seeds` for their number, or
`-` for words without numbers. A cell has the mean over seeds, ± the deviation,
and in brackets what was published of the set-up. Further keys:

- `setup`: of the rows, where a file has several;
- `by`: the column that has the names of rows, instead of `name` or `method`;
- `published`: the set-up in published.csv, if it has another name; `on`: the
  data there, `test` by default;
- `baseline`: the table has differences to this run, with p, stars and, where
  it has some, what holds; a column may be `pairs`;
- `kind=claims; family=NAME`: the table is that of `check_claims.py`;
- a row `trend` has Page's test over the rows above, as `trends.py` prints it;
- `kind=ranks`: mean ranks, columns `measure (what the runs are tuned by)`.

In the text, a number with three decimals or more must be in the tables or runs
of its section, the difference of two numbers of a column, or be brought by one
of these comments: published numbers of a set-up and their differences; columns
that are in no table, of runs or of their rows weighted by another column;
numbers with a reason.

    <!-- published: voc_deeplabv3_acls -->
    <!-- published: coco_retinanet_resnet50 on imagenet_mask_resnet50 -->
    <!-- published: tiny_imagenet_resnet50: 0.0105, 0.0154 -->
    <!-- means: file=label_relaxation.csv; columns=confidence -->
    <!-- means: file=cifar10h_imbalance.csv; columns=pull by count -->
    <!-- text: 0.0147, 0.0171: why they are in no table -->
"""

import itertools
import re
import sys

import numpy as np
from results_tables import (
    ROOT,
    deviation,
    expected,
    name_of,
    published_of,
    read,
)

_IN_TEXT = re.compile(r"(?<![\w.])\d+\.\d{3,}(?![\w])")
# Addresses hold numbers that say nothing.
_LINK = re.compile(r"\]\([^)\s]*\)")


class Page:
    """What a page says, recomputed.

    Attributes:
        matched: Number of cells and of numbers in the text that are right.
        problems: What is wrong, in words.
    """

    def __init__(self, text):
        self.matched = {"cells": 0, "text": 0}
        self.problems = []
        for section in re.split(r"^(?=##)", _without_code(text), flags=re.M):
            self._check_section(section)

    def _check_section(self, section):
        title = section.partition("\n")[0]
        pool, prose, allowed, declared = _Pool(), [], {}, None
        for block in _blocks(section):
            kind, _, words = block.partition(": ")
            if kind == "<!-- table":
                declared = _declaration(words)
            elif kind == "<!-- text":
                numbers, _, reason = words.removesuffix(" -->").partition(": ")
                if not reason:
                    self._wrong(title, f"no reason for {numbers}")
                allowed |= dict.fromkeys(numbers.split(", "), 0)
            elif kind == "<!-- published":
                where, _, numbers = words.removesuffix(" -->").partition(": ")
                known = published_numbers(*where.split(" on "))
                chosen = set(numbers.split(", ")) if numbers else {*known}
                for number in chosen - {*known}:
                    self._wrong(title, f"{number} is not published of {where}")
                pool.add_published({x: known[x] for x in chosen & {*known}})
            elif kind == "<!-- means":
                pool.add_means(**_declaration(words))
            elif block.startswith("|"):
                self._check_table(title, block, declared, pool)
                declared = None
            else:
                prose.append(block)
        for number in _IN_TEXT.findall(_LINK.sub("]", " ".join(prose))):
            if number in allowed:
                allowed[number] += 1
            if number in allowed or pool.has(number):
                self.matched["text"] += 1
            else:
                self._wrong(title, f"{number} in the text is in no run")
        for number in [n for n, times in allowed.items() if not times]:
            self._wrong(title, f"{number} is explained and not in the text")

    def _check_table(self, title, block, declared, pool):
        rows = [_cells(line) for line in block.splitlines()[2:]]
        if declared is None:
            self._wrong(title, f"no comment before the table {block[:60]}")
            return
        try:
            right = expected(declared, rows, pool)
        except (KeyError, OSError, ValueError) as error:
            self._wrong(title, f"{type(error).__name__}: {error} {declared}")
            return
        for row, cells in zip(rows, right, strict=True):
            for cell, known in zip(row, cells, strict=True):
                if cell == known:
                    self.matched["cells"] += any(x.isdigit() for x in cell)
                else:
                    self._wrong(title, f"{row[0]}: {cell}, not {known}")

    def _wrong(self, title, words):
        self.problems.append(f"{title}: {words}")


def published_numbers(setup, on="test"):
    """`{number as printed: measures}` of all that was published of a set-up."""
    found = {}
    for (_, measure), text in published_of(setup, on).items():
        found.setdefault(text.split()[0], set()).add(measure)
    return found


class _Pool:
    """Numbers that the text of a section may have."""

    def __init__(self):
        self.values = []
        self.columns = {}

    def add(self, *values):
        self.values += [float(v) for v in values]

    def add_column(self, place, measure, by_seed):
        """A cell, and its differences to others of its column.

        Differences of means of several seeds; and of each seed, to the first
        of the column and to the same row after a temperature or normalised.
        """
        values = list(by_seed.values())
        self.add(*values, np.mean(values), deviation(values))
        own = self.columns.setdefault((place, measure), [])
        base = re.sub(r"(_ts_ece|_ts|_norm|_msp)$", "", measure)
        row = self.columns.setdefault((place, base, len(own)), [])
        for other in own * (len(values) > 1):
            self.add(np.mean(values) - np.mean(list(other.values())))
        for other in own[:1] + row:
            seeds = set(by_seed) & set(other)
            self.add(*(by_seed[seed] - other[seed] for seed in seeds))
        own.append(by_seed)
        row.append(by_seed)

    def add_published(self, numbers):
        """`{number: its measures}`, and differences of a measure."""
        for measure in set().union(*numbers.values()):
            own = [float(x) for x, found in numbers.items() if measure in found]
            self.add(*own)
            self.add(*(a - b for a, b in itertools.combinations(own, 2)))

    def add_means(self, file, columns):
        """Of seeds, or of the rows of a run, weighted: `value by weight`."""
        for column in columns.split(" | "):
            value, _, weight = column.partition(" by ")
            runs = {}
            for run in read(file):
                if run[value]:
                    own = run["run"] if weight else ""
                    key = run["setup"], name_of(run), own
                    runs.setdefault(key, []).append(run)
            for rows in runs.values():
                values = [float(row[value]) for row in rows]
                weights = [float(row[weight]) if weight else 1 for row in rows]
                self.add(np.average(values, weights=weights))
                if not weight:
                    self.add(*values, deviation(values))

    def has(self, number):
        digits = len(number.partition(".")[2])
        return any(f"{abs(v):.{digits}f}" == number for v in self.values)


def _declaration(words):
    pairs = words.removesuffix("-->").strip().split("; ")
    return dict(pair.split("=", 1) for pair in pairs)


def _without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def _blocks(section):
    """Comments, tables and paragraphs, each in one line but tables."""
    section = section.replace("-->\n", "-->\n\n").replace("\n<!--", "\n\n<!--")
    for block in re.split(r"\n\s*\n", section):
        block = block.strip()
        if block:
            table = block.startswith("|")
            yield block if table else re.sub(r"\s+", " ", block)


def _cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def main():
    page = Page((ROOT / "docs" / "results.md").read_text(encoding="utf-8"))
    print(
        f"{page.matched['cells']} cells and {page.matched['text']} numbers of "
        "the text are what the runs say."
    )
    if page.problems:
        sys.exit("\n".join(page.problems))


if __name__ == "__main__":
    main()
