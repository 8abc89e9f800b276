r"""One table of many runs, beside what was published.

    python examples/papers/compare.py work/runs
    python examples/papers/compare.py work/runs --measures=ece_ts,aurc_norm
    python examples/papers/compare.py \
        benchmarks/results/runs/label_relaxation.csv

prints for each set-up means and standard deviations over seeds, with the
published numbers in brackets; differences to --baseline on the same seeds, with
p of a t-test of pairs, and which hold after Holm's correction for all
differences of the table; and the mean ranks of the methods over the set-ups.
Written
to --out: table.md, runs.csv with all rows, and ece.png. A runs.csv stands for
the runs that it was made of, beside folders of other runs.

    python examples/papers/compare.py work/runs --on=V1,V2,context \
        --measures=accuracy,ece100,overconfidence,underconfidence

prints a block for each of --on: test, validation and V1 are the run's own test
data, under the name that the paper gives them; other names are those of
evaluate.py, which has predicted these data.
"""

from pathlib import Path

import matplotlib as mpl
from absl import app
from absl import flags
from results.comparisons import blocks
from results.comparisons import differences
from results.comparisons import grouped
from results.comparisons import markdown
from results.comparisons import paired_values
from results.comparisons import ranks
from results.comparisons import read_published
from results.comparisons import write_rows
from results.other_data import measured_on
from results.pairs import draw
from results.pairs import summarize

_MEASURES = flags.DEFINE_list(
    "measures", ["accuracy", "nll", "ece", "aece", "aurc"], "Columns."
)
_BASELINE = flags.DEFINE_string(
    "baseline", "cross_entropy", "Method the others are compared with."
)
_TIES = flags.DEFINE_enum(
    "ties",
    "average",
    ["average", "lowest"],
    "Ranks of equal methods: their mean; or the best of them, of means rounded "
    "to three digits, as in Label Relaxation.",
)
_ON = flags.DEFINE_list(
    "on", [], "Data that tables are of; by default the runs' own test data."
)
_OUT = flags.DEFINE_string("out", "work/comparison", "Folder for results.")
_PUBLISHED = flags.DEFINE_string(
    "published",
    str(Path(__file__).parent / "results" / "published.csv"),
    "Table of published numbers.",
)

# To `ranks`.
_ROUNDED = {"average": {}, "lowest": {"ties": "min", "digits": 3}}


def main(argv):
    mpl.use("Agg")
    setups = grouped(argv[1:] or ["work/runs"])
    if not setups:
        raise app.UsageError(
            "The folders must hold finished runs, with results.csv, or be "
            "such files of rows as this script writes. "
            f"Received: {argv[1:]}"
        )
    out = Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    parts, values = [], {}
    for setup, where, methods in measured_on(setups, _ON.value):
        published = {}
        if Path(_PUBLISHED.value).is_file():
            published = read_published(_PUBLISHED.value, setup, where)
        text = markdown(methods, _MEASURES.value, published)
        setup += f", on {where}" if where else ""
        parts.append(f"## {setup}\n\n{text}")
        if _BASELINE.value in methods:
            text = differences(methods, _MEASURES.value, _BASELINE.value)
            parts.append(f"Less {_BASELINE.value}, same seeds:\n\n{text}")
            values[setup] = paired_values(methods, _BASELINE.value)
    values = {setup: found for setup, found in values.items() if found}
    if values:
        draw(summarize(values), out / "ece.png")
    for tuned, block in blocks(setups).items() if len(setups) > 1 else ():
        found = ranks(block, _MEASURES.value, **_ROUNDED[_TIES.value])
        head = "| method | " + " | ".join(_MEASURES.value) + " |"
        lines = [head, "|---|" + "---|" * len(_MEASURES.value)]
        for name, row in found.items():
            cells = " | ".join(f"{rank:.2f}" for rank in row)
            lines.append(f"| {name} | {cells} |")
        title = "## Mean ranks" + (f", tuned by {tuned}" if tuned else "")
        parts.append("\n".join([title, "", *lines]))
    write_rows(setups, out / "runs.csv")
    text = "\n\n".join(parts) + "\n"
    (out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"Written to {out}")


if __name__ == "__main__":
    app.run(main)
