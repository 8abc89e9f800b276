r"""Test claims on runs, with a correction for the number of claims.

    python examples/papers/check_claims.py \
        --claims=benchmarks/results/runs/claims.csv

The script prints a table for each family of claims. A row has the mean
difference of two methods on the same seeds, and the p-value of a two-sided
paired t-test. The last column corrects it by Holm's method for all claims of
the family.

By chance, one false claim in twenty has a p-value below 0.05. After the
correction, one family in twenty has such a claim. A claim holds if its
corrected p-value is below 0.05.

The file has a row for each claim. Its columns are the family, the table (a CSV
file of runs beside it), the set-up, the claim in words, and two methods with
the measure of each. The last column says whether the first is expected to be
lower than, higher than or equal to the second.
"""

from pathlib import Path

import numpy as np
from absl import app, flags
from config.script import start
from results.pairs import LEVEL, p_of_pairs, p_text
from results.runs import read_rows

from keras_calib.functional.group_table import holm

_CLAIMS = flags.DEFINE_string(
    "claims", None, "CSV file of claims.", required=True
)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
    for family, rows in checked(_CLAIMS.value).items():
        print(f"## {family}\n\n{table(rows)}\n")


def checked(path):
    """`{family: rows}` of a file of claims, with what the runs say.

    Returns:
        Rows with `difference`, `p`, `corrected` and `verdict`.

    Raises:
        ValueError: If a table has fewer than two pairs of runs of a claim.
    """
    families = {}
    for row in read_rows(path):
        gaps = _gaps(Path(path).parent / row["table"], row)
        found = {"difference": np.mean(gaps), "p": p_of_pairs(gaps)}
        families.setdefault(row["family"], []).append(row | found)
    for rows in families.values():
        for row, p in zip(rows, holm([r["p"] for r in rows]), strict=True):
            row["corrected"] = p
            row["verdict"] = _verdict(row)
    return families


def table(rows):
    """Markdown of the rows of one family."""
    lines = [
        "| claim | difference | p | corrected p | |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = f"{row['difference']:+.4f} | {p_text(row['p'])}"
        lines.append(
            f"| {row['claim']} | {numbers} | {p_text(row['corrected'])} "
            f"| {row['verdict']} |"
        )
    return "\n".join(lines)


def _gaps(path, claim):
    """The first method less the second, on the seeds that both have."""
    values = {"first": {}, "second": {}}
    for row in read_rows(path):
        name = row.get("name", row["method"])
        for place, of_seed in values.items():
            if (row["setup"], name) == (claim["setup"], claim[place]):
                of_seed[row["seed"]] = row[claim[f"{place}_measure"]]
    seeds = sorted(set(values["first"]) & set(values["second"]))
    if len(seeds) < 2:
        raise ValueError(
            "A claim must have two pairs of runs at least. Received: "
            f"claim={claim['claim']}, table={path}, seeds={seeds}"
        )
    return [values["first"][s] - values["second"][s] for s in seeds]


def _verdict(row):
    expected = row["expected"]
    if row["corrected"] >= LEVEL:
        return "not shown"
    found = "lower" if row["difference"] < 0 else "higher"
    if expected == "equal":
        return "does not hold"
    return "holds" if found == expected else "the reverse holds"


if __name__ == "__main__":
    start(main)
