r"""Show the effect of one hyperparameter, with a test of trend.

    python examples/papers/trends.py work/runs/fashion_mnist_dense
    python examples/papers/trends.py runs.csv --of=gamma --method=focal \
        --measures=accuracy,ece

The script takes the runs of --method, whose `options` have --of, and those of
--at_zero as the value 0. They come from folders of runs, or from a runs.csv of
compare.py.

For each set-up it prints a row per value, with means and standard deviations
over seeds. The last row has Page's test of a trend, on the seeds with every
value: the direction, the two-sided p-value, and a star if it is below 0.05.

The default is label smoothing and rejection: AURC and coverage at 1 % and 5 %
risk. Predictions are ranked by softmax (aurc), by normalised logits
(aurc_norm), and by logits normalised without centring (aurc_norm_raw). --out
gets trends.md and trends.png.
"""

from pathlib import Path

import matplotlib as mpl
from absl import app, flags
from config.script import start
from results.comparisons import grouped
from results.trends import draw, markdown, rows_of, summaries

_OF = flags.DEFINE_string("of", "alpha", "Argument of the loss that varies.")
_METHOD = flags.DEFINE_string(
    "method",
    "label_smoothing",
    "Method of the runs. Names that begin with it and an underscore belong "
    "to it too.",
)
_AT_ZERO = flags.DEFINE_string(
    "at_zero", "cross_entropy", "Method whose runs have the value 0, or ''."
)
_MEASURES = flags.DEFINE_list(
    "measures",
    [
        f"{measure}{suffix}"
        for measure in ("aurc", "coverage_at_1", "coverage_at_5")
        for suffix in ("", "_norm", "_norm_raw")
    ],
    "Columns to show; those that no run has are left out.",
)
_OUT = flags.DEFINE_string("out", "work/trends", "Folder for results.")


def main(argv):
    mpl.use("Agg")
    setups = rows_of(
        grouped(argv[1:] or ["work/runs"]),
        _OF.value,
        _METHOD.value,
        _AT_ZERO.value or None,
    )
    out = Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    found = {
        setup: summaries(values, _MEASURES.value)
        for setup, values in setups.items()
    }
    if not all(found.values()):
        raise app.UsageError(
            "`--measures` must name columns of the runs. Received: "
            f"--measures={','.join(_MEASURES.value)}"
        )
    parts = [
        f"## {setup}\n\n{markdown(_OF.value, setups[setup], own)}\n"
        for setup, own in found.items()
    ]
    text = "\n".join(parts)
    (out / "trends.md").write_text(text, encoding="utf-8")
    draw(_OF.value, found, out / "trends.png")
    print(text)
    print(f"Written to {out}")


if __name__ == "__main__":
    start(main)
