"""Many runs in one table: means over seeds, what was published, ranks."""

import csv
import math

import numpy as np
from run_results import find_runs
from run_results import read_row
from scipy.stats import rankdata
from scipy.stats import ttest_rel

__all__ = [
    "differences",
    "grouped",
    "markdown",
    "paired_values",
    "read_published",
    "ranks",
    "write_rows",
]

# Of which more is better.
_RISING = ("accuracy", "miou", "coverage_at_1", "coverage_at_5")
# On what papers measure, the test data of a recipe first.
_OWN = ("test", "validation", "V1")
# Runs beside which the numbers of a published name stand too.
_SAME = {"acls": ("acls_released",)}
_COLUMNS = {"mean_confidence": "confidence"}
# What `paired_results` takes, and the unit.
_PAIRED = (("accuracy", 1), ("nll", 1), ("ece", 1), ("aece", 1), ("aurc", 1000))


def grouped(folders):
    """Rows of runs, `{set-up: {method: {seed: row}}}`, without grids."""
    found = {}
    for folder in find_runs(folders):
        row = read_row(folder)
        tuned = row.get("tuned", "")
        if tuned == "grid":
            continue
        name = row["method"] + (f" ({tuned})" if tuned else "")
        if "held_out" in folder.parent.name:
            name += " held out"
        methods = found.setdefault(row["setup"], {})
        methods.setdefault(name, {})[row["seed"]] = row
    return found


def markdown(methods, measures, published):
    """A table of one set-up: a row per method.

    Args:
        methods: `{method: {seed: row}}`.
        measures: Names of columns of the rows.
        published: `{(method, measure): text}`.
    """
    lines = [
        "| method | seeds | " + " | ".join(measures) + " |",
        "|---|---|" + "---|" * len(measures),
    ]
    for method, seeds in methods.items():
        rows = [row for row in seeds.values() if not row["diverged"]]
        count = f"{len(rows)}"
        if len(rows) < len(seeds):
            count += f" ({len(seeds) - len(rows)} diverged)"
        cells = []
        for measure in measures:
            values = [row[measure] for row in rows if measure in row]
            printed = published.get((method, measure))
            cells.append(_cell(values) + (f" [{printed}]" if printed else ""))
        lines.append(f"| {method} | {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def differences(methods, measures, baseline):
    """A table of mean differences to a method on the same seeds.

    Args:
        methods: `{method: {seed: row}}`.
        measures: Names of columns of the rows.
        baseline: Name of a method.

    Returns:
        Markdown. Each cell has the mean difference, p of a t-test of pairs,
        two-sided, and a star where p < 0.05; of one seed, the difference.
        Seeds with which either diverged are left out.
    """
    lines = [
        "| method | pairs | " + " | ".join(measures) + " |",
        "|---|---|" + "---|" * len(measures),
    ]
    for method, rows in methods.items():
        if method == baseline:
            continue
        pairs = [
            (row, methods[baseline][seed])
            for seed, row in rows.items()
            if seed in methods[baseline]
        ]
        pairs = [p for p in pairs if not (p[0]["diverged"] or p[1]["diverged"])]
        cells = [
            _difference(
                [
                    [row[measure] for row in pair]
                    for pair in pairs
                    if all(measure in row for row in pair)
                ]
            )
            for measure in measures
        ]
        lines.append(f"| {method} | {len(pairs)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def paired_values(methods, baseline):
    """`{method: (seeds, 5)}` for `paired_results`, the baseline first.

    Only seeds that the baseline and all methods have; methods without any
    of the seeds of the baseline are left out.
    """
    finite = {
        name: {s: row for s, row in seeds.items() if not row["diverged"]}
        for name, seeds in methods.items()
    }
    own = finite.pop(baseline)
    finite = {
        name: rows for name, rows in finite.items() if set(rows) & set(own)
    }
    finite = {baseline: own, **finite}
    shared = set.intersection(*(set(rows) for rows in finite.values()))
    seeds = sorted(shared)
    if not seeds:
        return {}
    return {
        name: [
            [unit * rows[seed][measure] for measure, unit in _PAIRED]
            for seed in seeds
        ]
        for name, rows in finite.items()
    }


def ranks(setups, measures):
    """Mean rank of each method over set-ups, 1 the best, ties averaged.

    Args:
        setups: As of `grouped`.
        measures: Names of columns of the rows.

    Returns:
        `{method: [mean rank by each measure]}` of the methods that all
        set-ups have, with these measures in all runs.
    """
    names = set.intersection(
        *(
            {
                name
                for name, rows in methods.items()
                if all(set(measures) <= set(row) for row in rows.values())
            }
            for methods in setups.values()
        )
    )
    names = [name for name in next(iter(setups.values())) if name in names]
    table = np.zeros((len(names), len(measures)))
    for methods in setups.values():
        for column, measure in enumerate(measures):
            means = [
                np.mean([row[measure] for row in methods[name].values()])
                for name in names
            ]
            sign = -1.0 if measure.startswith(_RISING) else 1.0
            # As printed: methods that tables show as equal have equal ranks.
            table[:, column] += rankdata(sign * np.round(means, 4))
    table /= len(setups)
    return {name: list(row) for name, row in zip(names, table, strict=True)}


def read_published(path, setup):
    """`{(method, measure): text}` of the published numbers of a set-up.

    Those on the set-up's own test data; of ACLS, beside both of its forms.
    """
    found = {}
    with open(path, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["setup"] == setup]
    for where in _OWN:
        for row in rows:
            if row["on"] != where:
                continue
            tuned = f" ({row['tuned']})" if row["tuned"] else ""
            spread = f" ± {row['std']}" if row["std"] else ""
            for name in (row["loss"], *_SAME.get(row["loss"], ())):
                measure = _COLUMNS.get(row["measure"], row["measure"])
                key = name + tuned, measure
                found.setdefault(key, row["value"] + spread)
            # What a temperature does is in columns of the run itself; the
            # accuracy that it goes with is that of the run that held data out.
            name, sign, _ = row["loss"].partition("+temperature")
            if sign:
                measure = row["measure"]
                column = (
                    measure if measure == "accuracy" else f"{measure}_ts_ece"
                )
                for own in (name, f"{name} held out"):
                    found.setdefault((own, column), row["value"] + spread)
    return found


def write_rows(setups, path):
    """All rows of all runs, as CSV."""
    rows = [
        {"name": name, **row}
        for methods in setups.values()
        for name, seeds in methods.items()
        for row in seeds.values()
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _cell(values):
    if not values:
        return "-"
    mean = np.mean(values)
    if len(values) == 1 or not math.isfinite(mean):
        return f"{mean:.4f}"
    return f"{mean:.4f} ± {np.std(values, ddof=1):.4f}"


def _difference(pairs):
    if not pairs:
        return "-"
    gaps = np.subtract(*np.transpose(pairs))
    text = f"{gaps.mean():+.4f}"
    if len(gaps) == 1:
        return text
    # Equal differences have no spread to compare with.
    p = ttest_rel(*np.transpose(pairs)).pvalue if np.ptp(gaps) else math.nan
    return f"{text} (p = {p:.3f})" + ("*" if p < 0.05 else "")
