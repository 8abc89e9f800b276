r"""Make one table of many runs, beside published numbers.

    python examples/papers/compare.py work/runs
    python examples/papers/compare.py work/runs --measures=ece_ts,aurc_norm
    python examples/papers/compare.py \
        benchmarks/results/runs/label_relaxation.csv
    python examples/papers/compare.py --model=hierarchical --rope=0.005 \
        --measures=ece benchmarks/results/runs/label_relaxation.csv

For each set-up the script prints means and standard deviations over seeds, with
the published numbers in brackets. The best is bold, and a dagger marks those
that are not shown to be worse on the same seeds. It also prints differences to
--baseline, with the p-value of a paired t-test. It marks those that hold after
Holm's correction for all differences of the table. Mean ranks of the methods
over the set-ups follow, beside the published ranks.

--out gets table.md, runs.csv with all rows, and ece.png. A runs.csv can be
given in place of the folders of its runs, and so can any CSV file of a row for
each run. It needs the columns setup, method and seed, and measures of any name.
It may have name, which is shown in place of the method, options, and diverged.

    python examples/papers/compare.py work/runs --on=V1,V2,context \
        --measures=accuracy,ece100_pycalib,overconfidence,underconfidence

--on prints a block for each of these data. The names test, validation and V1
are those that papers give to the run's own test data. Other names are those of
data that evaluate.py has predicted.

--model=hierarchical writes hierarchical.md, from a Bayesian model of all
set-ups and seeds. It has the probabilities that a method is better than
--baseline, practically equal to it, or worse. They are for each set-up, for the
mean over set-ups and for a further set-up. This needs at least two seeds and
`pip install -e ".[bayes]"`, and takes up to half a minute.
"""

from pathlib import Path

import matplotlib as mpl
from absl import app, flags
from config.script import start
from results import hierarchical
from results.comparisons import (
    blocks,
    differences,
    grouped,
    markdown,
    paired_values,
    ranks,
    read_published,
    write_rows,
)
from results.other_data import measured_on
from results.pairs import draw, summarize

_MEASURES = flags.DEFINE_list(
    "measures",
    ["accuracy", "nll", "ece", "aece", "aurc"],
    "Columns of the tables.",
)
_BASELINE = flags.DEFINE_string(
    "baseline", "cross_entropy", "Method that the others are compared with."
)
_TIES = flags.DEFINE_enum(
    "ties",
    "average",
    ["average", "lowest"],
    "Rank of equal methods: the mean of their ranks; or the best one, after "
    "rounding to three digits, as in Label Relaxation.",
)
_ON = flags.DEFINE_list(
    "on",
    [],
    "Names of the data to compare on. Defaults to the runs' own test data.",
)
_OUT = flags.DEFINE_string("out", "work/comparison", "Folder for results.")
_MODEL = flags.DEFINE_enum(
    "model",
    "pairs",
    ["pairs", "hierarchical"],
    "Model of the comparison: tests of pairs, or a Bayesian hierarchical "
    "model too.",
)
_ROPE = flags.DEFINE_list(
    "rope",
    ["0.005"],
    "Largest difference that --model=hierarchical takes for practically "
    "equal: one number for all measures, and others for single ones, as in "
    "nll=0.02.",
)
_DRAWS = flags.DEFINE_integer(
    "draws",
    1500,
    "Number of draws of each chain of --model=hierarchical.",
    lower_bound=100,
)
_PUBLISHED = flags.DEFINE_string(
    "published",
    str(Path(__file__).parent / "results" / "published.csv"),
    "Table of published numbers.",
)

# To `ranks`.
_ROUNDED = {"average": {}, "lowest": {"ties": "min", "digits": 3}}


def published_of(setup, where=""):
    if not Path(_PUBLISHED.value).is_file():
        return {}
    return read_published(_PUBLISHED.value, setup, where)


def main(argv):
    mpl.use("Agg")
    if _MODEL.value == "hierarchical":
        hierarchical.check_installed()
        ropes = hierarchical.read_ropes(_ROPE.value, _MEASURES.value)
    setups = grouped(argv[1:] or ["work/runs"])
    if not setups:
        raise app.UsageError(
            "Arguments must be folders of finished runs, with results.csv, "
            f"or files runs.csv that this script wrote. Received: {argv[1:]}"
        )
    out = Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    parts, values, measures = [], {}, _MEASURES.value
    placed = measured_on(setups, _ON.value)
    known = {
        k: 0
        for *_, x in placed
        for rows in x.values()
        for row in rows.values()
        for k in row
    }
    if not flags.FLAGS["measures"].present:
        measures = [x for x in measures if x in known]
    if not known.keys() & {*measures}:
        raise app.UsageError(
            "--measures must name columns of the runs. Received: "
            f"{', '.join(_MEASURES.value)}; the runs have {', '.join(known)}"
        )
    for setup, where, methods in placed:
        text = markdown(methods, measures, published_of(setup, where))
        setup += f", on {where}" if where else ""
        parts.append(f"## {setup}\n\n{text}")
        if _BASELINE.value in methods:
            text = differences(methods, measures, _BASELINE.value)
            parts.append(f"Less {_BASELINE.value}, same seeds:\n\n{text}")
            values[setup] = paired_values(methods, _BASELINE.value)
    values = {setup: found for setup, found in values.items() if found}
    if values:
        draw(summarize(values), out / "ece.png")
    for tuned, block in blocks(setups).items() if len(setups) > 1 else ():
        found = ranks(block, measures, **_ROUNDED[_TIES.value])
        if not found:
            continue
        head = "| method | " + " | ".join(measures) + " |"
        lines = [head, "|---|" + "---|" * len(measures)]
        printed = published_of("+".join(setups))
        for name, row in found.items():
            cells = []
            for measure, rank in zip(measures, row, strict=True):
                keys = [
                    (own, f"rank_{measure}")
                    for own in (f"{name} ({tuned})", name)
                ]
                known = [printed[key] for key in keys if key in printed]
                cells.append(
                    f"{rank:.2f}" + (f" [{known[0]}]" if known else "")
                )
            lines.append(f"| {name} | {' | '.join(cells)} |")
        title = "## Mean ranks" + (f", tuned by {tuned}" if tuned else "")
        parts.append("\n".join([title, "", *lines]))
    write_rows(setups, out / "runs.csv")
    text = "\n\n".join(parts) + "\n"
    (out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    if _MODEL.value == "hierarchical":
        text = hierarchical.report(
            setups, ropes, _BASELINE.value, draws=_DRAWS.value
        )
        (out / "hierarchical.md").write_text(text + "\n", encoding="utf-8")
        print(f"## Hierarchical model\n\n{text}\n")
    print(f"Written to {out}")


if __name__ == "__main__":
    start(main)
