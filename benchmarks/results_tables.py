"""Cells of the tables of docs/results.md, from the runs."""

import csv
import re
import sys
from pathlib import Path

import numpy as np
from scipy.stats import page_trend_test, rankdata

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ROOT / "examples" / "papers"
RUNS = ROOT / "benchmarks" / "results" / "runs"
sys.path.insert(0, str(PAPERS))

from results.pairs import LEVEL, p_of_pairs, p_text  # noqa: E402

from keras_calib.functional.group_table import holm  # noqa: E402

_CELL = re.compile(r"([+-]?\d[\d.]*)( ± [\d.]+)?( \[[^]]+\])?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def expected(declared, rows, pool):
    """The cells as they should be."""
    kind = declared.get("kind", "runs")
    if kind == "claims":
        return _claims(declared["family"], rows, pool)
    names = declared["rows"].split(" | ")
    if len(names) != len(rows):
        raise ValueError(f"{len(rows)} rows, {len(names)} names")
    columns = declared["columns"].split(" | ")
    if {len(row) for row in rows} != {len(columns) + 1}:
        raise ValueError(f"not {len(columns)} columns beside the first")
    if kind == "ranks":
        return _ranks(declared["file"], names, columns, rows, pool)
    if "baseline" in declared:
        return _differences(declared, names, columns, rows, pool)
    return _means(declared, names, columns, rows, pool)


def _means(declared, names, columns, rows, pool):
    published, above = {}, {}
    found = []
    for name, row in zip(names, rows, strict=True):
        if name == "trend":
            tests = [_trend(above.get(column)) for column in columns]
            found.append([row[0], *tests])
            continue
        runs = _runs(declared, name)
        setup = declared.get("published", runs[0].get("setup", ""))
        published = published or published_of(setup, declared.get("on", "test"))
        options = runs[0].get("options", "")
        right = [_label(row[0], options + name)]
        for column, cell in zip(columns, row[1:], strict=True):
            measure, of_file = _measure(column, name)
            if column in ("-", "options"):
                right.append(_label(cell, options if column != "-" else ""))
                continue
            if column == "seeds":
                right.append(_seeds(runs))
                continue
            of = _runs(declared | of_file, name)
            if not cell:
                right.append(cell)
                continue
            by_seed = _by_seed(of, measure)
            above.setdefault(column, []).append(by_seed)
            pool.add_column(id(rows), measure, by_seed)
            printed = [
                published.get((name.partition("/")[0], m))
                for m in (measure, f"{measure}_ece", column)
            ]
            printed = next((text for text in printed if text), None)
            right.append(_mean(cell, list(by_seed.values()), printed, pool))
        found.append(right)
    return found


def _mean(cell, values, printed, pool):
    """As the cell rounds; brackets stand where the cell has some."""
    parts = _CELL.fullmatch(cell)
    if not parts and cell.startswith("<"):
        return p_text(np.mean(values))
    if not parts:
        return f"{np.mean(values):.4f}"
    digits = len(parts[1].partition(".")[2])
    sign = "+" if parts[1].startswith("+") else ""
    text = f"{np.mean(values):{sign}.{digits}f}"
    if len(values) > 1 and (parts[2] or deviation(values)):
        text += f" ± {deviation(values):.{digits}f}"
    if parts[3]:
        text += f" [{printed}]"
        numbers = [float(x) for x in _NUMBER.findall(printed or "")]
        pool.add(*numbers, *(np.mean(values) - x for x in numbers[:1]))
    return text


def _trend(above):
    """Page's test of a trend over the rows, two-sided, as trends.py says."""
    if above is None:
        return ""
    seeds = sorted(set.intersection(*map(set, above)))
    table = np.array([[own[seed] for own in above] for seed in seeds])
    if len(seeds) < 2 or len(above) < 3:
        return "-"
    up, down = (
        page_trend_test(part).pvalue for part in (table, table[:, ::-1])
    )
    p = min(1.0, 2 * min(up, down))
    text = f"{'rises' if up <= down else 'falls'}, p "
    text += p_text(p) if p < 0.001 else f"= {p_text(p)}"
    return text + ("*" if p < LEVEL else "")


def _differences(declared, names, columns, rows, pool):
    gaps = {}
    for name in names:
        for column in set(columns) - {"pairs"}:
            first, second = (
                _by_seed(_runs(declared, own), column)
                for own in (name, declared["baseline"])
            )
            seeds = sorted(set(first) & set(second))
            gaps[name, column] = [first[s] - second[s] for s in seeds]
    p = {k: p_of_pairs(np.array(x)) for k, x in gaps.items() if len(x) > 1}
    corrected = dict(zip(p, holm(list(p.values())), strict=True))
    marks = any("holds" in cell for row in rows for cell in row)
    found = []
    for name, row in zip(names, rows, strict=True):
        right = [row[0]]
        for column in columns:
            if column == "pairs":
                own = [x for key, x in gaps.items() if key[0] == name]
                right.append(f"{max(map(len, own))}")
                continue
            key = name, column
            text = f"{np.mean(gaps[key]):+.4f}" if gaps[key] else "-"
            pool.add(*[np.mean(gaps[key])] * bool(gaps[key]))
            if key in p:
                pool.add(p[key])
                sign = "" if p[key] < 0.001 else "= "
                text += f" (p {sign}{p_text(p[key])})"
                text += "*" if p[key] < LEVEL else ""
                text += " holds" if marks and corrected[key] < LEVEL else ""
            right.append(text)
        found.append(right)
    return found


def _claims(family, rows, pool):
    claims = [c for c in read("claims.csv") if c["family"] == family]
    found, p = [], []
    for claim in claims:
        first, second = (
            {
                run["seed"]: float(run[claim[f"{place}_measure"]])
                for run in read(claim["table"])
                if run["setup"] == claim["setup"]
                and run.get("name", run["method"]) == claim[place]
            }
            for place in ("first", "second")
        )
        gaps = [first[s] - second[s] for s in sorted(set(first) & set(second))]
        p.append(p_of_pairs(np.array(gaps)))
        pool.add(np.mean(gaps), p[-1])
        found.append([claim["claim"], f"{np.mean(gaps):+.4f}", p_text(p[-1])])
    for row, claim, value in zip(found, claims, holm(p), strict=True):
        pool.add(value)
        way = "lower" if row[1].startswith("-") else "higher"
        words = "holds" if way == claim["expected"] else "the reverse holds"
        if claim["expected"] == "equal":
            words = "does not hold"
        row += [p_text(value), words if value < LEVEL else "not shown"]
    if len(rows) != len(found):
        raise ValueError(f"{len(found)} claims of {family}, {len(rows)} rows")
    return found


def _ranks(file, names, columns, rows, pool):
    setups = list(dict.fromkeys(run["setup"] for run in read(file)))
    printed = published_of("+".join(setups))
    found = [[row[0]] for row in rows]
    for column in columns:
        measure, tuned = re.fullmatch(r"(\w+) \((\w+)\)", column).groups()
        ranks = np.zeros(len(names))
        for setup in setups:
            means = []
            for name in names:
                own, of = f"{name} ({tuned})", measure
                if not _has(file, setup, own):
                    own = name
                    if tuned == "ece":
                        own = f"{name} held out"
                        of += "_ts_ece" * (measure != "accuracy")
                runs = _runs({"file": file, "setup": setup}, own)
                means.append(np.mean([float(run[of]) for run in runs]))
            rises = measure.startswith(("accuracy", "coverage", "miou"))
            sign = -1 if rises else 1
            ranks += rankdata(sign * np.round(means, 3), "min") / len(setups)
        for row, name, rank in zip(found, names, ranks, strict=True):
            keys = [f"{name} ({tuned})", f"{name}+temperature ({tuned})", name]
            texts = [printed.get((key, f"rank_{measure}")) for key in keys]
            row.append(f"{rank:g} [{next((t for t in texts if t), None)}]")
    return found


def _label(text, options):
    """As it is, if its numbers are options or of an equation."""
    options = options.replace("zero", "0").replace("_", " ")
    known = {float(x) for x in _NUMBER.findall(options)}
    # Where a hyperparameter varies, runs without it have the value 0.
    known |= set() if "=" in options else {0.0}
    numbers = _NUMBER.findall(re.sub(r"eq\. \d+", "", text))
    unknown = [x for x in numbers if float(x) not in known]
    return f"without {', '.join(unknown)}" if unknown else text


def _measure(column, name):
    """Measure of a column and row, and where it is from."""
    measure, _, file = column.partition("@")
    return measure + name.partition("/")[2], {"file": file} if file else {}


def _runs(declared, name):
    name = name.partition("/")[0]
    by = declared.get("by")
    runs = [
        run
        for run in read(declared["file"])
        if (run[by] if by else name_of(run)) == name
        and run.get("setup") == declared.get("setup", run.get("setup"))
    ]
    if not runs or len({run.get("setup") for run in runs}) > 1:
        raise ValueError(f"no runs {name}, or of several set-ups")
    return runs


def _by_seed(runs, measure):
    """Without runs that diverged, which have no measures."""
    return {
        run.get("seed", place): float(run[measure])
        for place, run in enumerate(runs)
        if run[measure] != ""
    }


def _seeds(runs):
    diverged = sum(run.get("diverged") == "True" for run in runs)
    text = f" ({diverged} diverged)" if diverged else ""
    return f"{len(runs) - diverged}{text}"


def _has(file, setup, name):
    return any((r["setup"], name_of(r)) == (setup, name) for r in read(file))


def name_of(run):
    return run.get("name", run["method"])


def published_of(setup, on="test"):
    """`{(run, measure): text}`."""
    path, found = PAPERS / "results" / "published.csv", {}
    names = sorted(setup.split("+"))
    for row in read(path):
        if sorted(row["setup"].split("+")) != names or row["on"] != on:
            continue
        text = row["value"] + (f" ± {row['std']}" if row["std"] else "")
        tuned = f" ({row['tuned']})" if row["tuned"] else ""
        found.setdefault((row["loss"] + tuned, row["measure"]), text)
        name, sign, _ = row["loss"].partition("+temperature")
        if sign and not row["measure"].startswith("rank_"):
            measure = row["measure"] + "_ts_ece" * (row["measure"] == "ece")
            for own in (name, f"{name} held out"):
                found.setdefault((own, measure), text)
    return found


_FILES = {}


def read(file):
    if file not in _FILES:
        with open(RUNS / file, newline="", encoding="utf-8") as opened:
            _FILES[file] = list(csv.DictReader(opened))
    return _FILES[file]


def deviation(values):
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
