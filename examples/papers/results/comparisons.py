"""Many runs in one table: means over seeds, what was published, ranks."""

import csv
import math
from pathlib import Path

import numpy as np
from absl import app
from scipy.stats import rankdata

from keras_calib.functional.group_table import holm
from keras_calib.reporting import Runs
from results.other_data import OWN, evaluations
from results.pairs import LEVEL, p_equation
from results.runs import find_runs, mode_of, read_row, read_rows, rises

# Columns without which a row of a file is no run.
_NEEDED = ("setup", "method", "seed")

# Runs beside which the numbers of a published name stand too.
_SAME = {"acls": ("acls_released",)}
_COLUMNS = {"mean_confidence": "confidence"}
# Below a table of differences.
_TESTED = (
    "p: two-sided t-test of pairs on the same seeds; * below {level}. Holds: "
    "below {level} after Holm's correction for the table's {count} differences."
)
# What `results.pairs` takes, and the unit.
_PAIRED = (("accuracy", 1), ("nll", 1), ("ece", 1), ("aece", 1), ("aurc", 1000))


def grouped(folders):
    """Rows of runs, `{set-up: {method: {seed: row}}}`, without grids.

    `folders` are folders of runs, or files that `write_rows` wrote. Names of
    methods that ran with several options have these in brackets.

    Raises:
        app.UsageError: If runs cannot stand in one table: two of one name and
            seed, or some on official and others on resampled data.
    """
    found, options, folder_of, drawn = {}, {}, {}, {}
    for folder, name, row in _runs(folders):
        setup = row["setup"]
        key = setup, name, row["options"]
        options.setdefault(key[:2], set()).add(row["options"])
        first = drawn.setdefault(setup, (bool(row.get("resampled")), folder))
        other = folder_of.setdefault((*key, row["seed"]), folder)
        if other != folder or first[0] != bool(row.get("resampled")):
            raise app.UsageError(
                "Runs of one table must differ in method, options or seed, "
                "and those of a set-up must all be on resampled data, or "
                "none: name fewer folders. Received: "
                f"{other if other != folder else first[1]}, {folder}"
            )
        found.setdefault(setup, {}).setdefault(key, {})[row["seed"]] = row
    return {
        setup: {
            name + (f" [{own}]" if len(options[setup, name]) > 1 else ""): rows
            for (_, name, own), rows in methods.items()
        }
        for setup, methods in found.items()
    }


def markdown(methods, measures, published):
    """A table of one set-up: a row per method.

    Args:
        methods: `{method: {seed: row}}`.
        measures: Names of columns of the rows.
        published: `{(method, measure): text}`.
    """
    return _over_seeds(methods, measures).to_markdown(published)


def differences(methods, measures, baseline):
    """A table of mean differences to a method on the same seeds.

    Args:
        methods: `{method: {seed: row}}`.
        measures: Names of columns of the rows.
        baseline: Name of a method.

    Returns:
        Markdown. Each cell has the mean difference and the p-value of a
        two-sided paired t-test, or the difference alone for one seed. A star
        marks values below 0.05, and "holds" those that stay below it after
        Holm's correction for the table. The line below says so. Seeds with
        which either method diverged are left out.
    """
    lines = [
        "| method | pairs | " + " | ".join(measures) + " |",
        "|---|---|" + "---|" * len(measures),
    ]
    table = _over_seeds(methods, measures, baseline=baseline).table
    keys = [*zip(table["model"], table["metric"], strict=True)]
    gaps = dict(zip(keys, table["difference"], strict=True))
    p = dict(zip(keys, table["p_value"], strict=True))
    p = {key: value for key, value in p.items() if math.isfinite(value)}
    # Of all measures together.
    corrected = dict(zip(p, holm([*p.values()]), strict=True))
    for method, rows in methods.items():
        if method == baseline:
            continue
        found = [
            {k for k, x in m.items() if not x["diverged"]}
            for m in (rows, methods[baseline])
        ]
        cells = [
            _difference(gaps[key], p.get(key), corrected.get(key))
            for key in ((method, measure) for measure in measures)
        ]
        count = len(set.intersection(*found))
        lines.append(f"| {method} | {count} | " + " | ".join(cells) + " |")
    if p:
        lines += ["", _TESTED.format(level=LEVEL, count=len(p))]
    return "\n".join(lines)


def _over_seeds(methods, measures, **options):
    """`Runs` of `{method: {seed: row}}`; runs of a seed are pairs."""
    rows = [(name, *x) for name, own in methods.items() for x in own.items()]
    table = {"model": [x[0] for x in rows], "seed": [x[1] for x in rows]}
    for name in measures:
        table[name] = [
            "" if row["diverged"] else row.get(name, "") for *_, row in rows
        ]
    modes = {name: mode_of(name) for name in measures}
    return Runs.of_table(table, measures, modes=modes, paired=True, **options)


def paired_values(methods, baseline):
    """`{method: (seeds, 5)}` for `results.pairs`, the baseline first.

    A row for each seed of the baseline, NaN where a method has no such run;
    methods without any are left out, so detectors are, which have other
    measures.
    """
    missing = dict.fromkeys((name for name, _ in _PAIRED), math.nan)
    finite = {
        name: {
            seed: row
            for seed, row in seeds.items()
            if not row["diverged"] and missing.keys() <= row.keys()
        }
        for name, seeds in methods.items()
    }
    own = finite.pop(baseline)
    return {
        name: [
            [unit * rows.get(seed, missing)[name] for name, unit in _PAIRED]
            for seed in sorted(own)
        ]
        for name, rows in {baseline: own, **finite}.items()
        if set(rows) & set(own)
    }


def ranks(setups, measures, *, ties="average", digits=4):
    """Mean rank of each method over set-ups, 1 the best.

    Args:
        setups: As of `grouped`.
        measures: Names of columns of the rows.
        ties: What equal methods get: "average", or "min", the best rank.
        digits: Means that are equal when rounded so are ties.

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
            sign = -1.0 if rises(measure) else 1.0
            table[:, column] += rankdata(sign * np.round(means, digits), ties)
    table /= len(setups)
    return {name: list(row) for name, row in zip(names, table, strict=True)}


def blocks(setups):
    """Group the runs that are ranked together: those tuned by one measure.

    Runs that held data out also have a temperature by ECE. With it they are
    among those tuned by ECE, in place of the same method without it.

    Args:
        setups: Rows from `grouped`.

    Returns:
        `{measure: setups}`; the measure is "" if nothing was tuned.
    """
    marks = {
        name.partition(" (")[2].rstrip(")")
        for methods in setups.values()
        for name in methods
        if name.endswith(")")
    }
    found = {}
    for tuned in sorted(marks) or [""]:
        for setup, methods in setups.items():
            own = {
                name.removesuffix(f" ({tuned})"): rows
                for name, rows in methods.items()
                if name.endswith(f" ({tuned})")
                or not name.endswith((")", " held out"))
            }
            for name, rows in methods.items():
                base, sign, _ = name.partition(" held out")
                if sign and tuned == "ece":
                    own.pop(base, None)
                    own[f"{base}+temperature"] = _scaled(rows)
            found.setdefault(tuned, {})[setup] = own
    return found


def _scaled(rows):
    """Rows with the measures after the temperature by ECE."""
    end = "_ts_ece"
    return {
        seed: row
        | {
            name.removesuffix(end): x
            for name, x in row.items()
            if name.endswith(end)
        }
        for seed, row in rows.items()
    }


def read_published(path, setup, on=""):
    """Published numbers of a set-up, `{(method, measure): text}`.

    They are those on the data `on`, or else on the set-up's own test data. Both
    forms of ACLS get the numbers of ACLS, and detectors have the names of their
    runs. For several set-ups, `a+b`, they are the ranks over all of them.
    """
    found, names = {}, sorted(setup.split("+"))
    with open(path, newline="", encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if sorted(row["setup"].split("+")) == names
        ]
    for row in rows:
        if row["measure"].startswith(("ap", "ar")):
            name = f"{row['loss']}_from_{row['on']}"
            found.setdefault((name, row["measure"]), row["value"])
    for where in [on] if on else OWN:
        for row in rows:
            if row["on"] != where:
                continue
            tuned = f" ({row['tuned']})" if row["tuned"] else ""
            spread = f" ± {row['std']}" if row["std"] else ""
            for name in (row["loss"], *_SAME.get(row["loss"], ())):
                for measure in _columns(row):
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


def _columns(row):
    """Columns of runs that a published number stands beside."""
    measure = _COLUMNS.get(row["measure"], row["measure"])
    own = row["source"].startswith("Adaptive Label Smoothing")
    if own and measure in ("ece", "ece100"):
        return measure, f"{measure}_pycalib"
    return (measure,)


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


def _runs(places):
    """Where it is, name of its method, and row, of each run."""
    tables = [Path(x) for x in places if Path(x).suffix == ".csv"]
    for folder in find_runs(x for x in places if Path(x) not in tables):
        row = read_row(folder) | evaluations(folder)
        tuned = row.get("tuned", "")
        if tuned == "grid":
            continue
        name = row["method"] + (f" ({tuned})" if tuned else "")
        if "held_out" in folder.parent.name:
            name += " held out"
        yield folder, name, row
    for table in tables:
        for number, row in enumerate(read_rows(table), 2):
            if missing := [x for x in _NEEDED if x not in row]:
                raise app.UsageError(
                    f"A file must have a run in each row, with the columns "
                    f"{', '.join(_NEEDED)} and measures; check_claims.py reads "
                    f"claims. Received: {table} without {', '.join(missing)}, "
                    f"with {', '.join(row)}"
                )
            row = {"options": "", "diverged": False} | row
            name = row.pop("name", row["method"])
            # What a run did not have is empty.
            known = {k: v for k, v in row.items() if v != "" or k == "options"}
            own = name.removesuffix(f" [{row['options']}]")
            yield f"{table}, line {number}", own, known


def _difference(gap, p, corrected):
    if math.isnan(gap):
        return "-"
    text = f"{gap:+.4f}"
    if p is None:
        return text
    text += f" ({p_equation(p)})" + ("*" if p < LEVEL else "")
    return text + (" holds" if corrected < LEVEL else "")
