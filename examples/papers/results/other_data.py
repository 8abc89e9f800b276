"""What `evaluate.py` measured on other data than the runs' own."""

from absl import app

from results.runs import read_rows

# What papers call the test data of a recipe, in this order.
OWN = ("test", "validation", "V1")
# Columns that say which run it is.
_NAMES = ("setup", "method", "options", "seed", "diverged", "tuned")


def evaluations(folder):
    """Measures of a run on other data, by names that end in `_on_NAME`."""
    found = {}
    for path in sorted(folder.glob("evaluation_*.csv")):
        end = path.stem.replace("evaluation_", "_on_", 1)
        (row,) = read_rows(path)
        found |= {f"{measure}{end}": value for measure, value in row.items()}
    return found


def measured_on(setups, places):
    """`[(set-up, place, methods)]`: each set-up on each of some data.

    Args:
        setups: As of `grouped`.
        places: Names of data: those of `OWN` for the run's own test data,
            others as `evaluate.py` called them. If there are none, the place
            is "", the run's own test data too.

    Returns:
        Methods as of `grouped`, with the measures on these data in the place
        of the others. Runs without them are left out, but diverged ones;
        set-ups of which no run has them are left out too.

    Raises:
        app.UsageError: If no run has measures on one of the places.
    """
    found = []
    for setup, methods in setups.items():
        for place in places or [""]:
            tried = methods
            if place and place not in OWN:
                tried = {name: _on(place, x) for name, x in methods.items()}
                tried = {name: rows for name, rows in tried.items() if rows}
            rows = [row for seeds in tried.values() for row in seeds.values()]
            if not place or not all(row["diverged"] for row in rows):
                found.append((setup, place, tried))
    missing = sorted(set(places) - {place for _, place, _ in found})
    if missing:
        columns = {
            column
            for methods in setups.values()
            for rows in methods.values()
            for row in rows.values()
            for column in row
        }
        known = {x.partition("_on_")[2] for x in columns} - {""}
        raise app.UsageError(
            f"`--on` must name data that runs have measures on: {OWN}, or "
            f"{sorted(known)}, which evaluate.py --on=NAME=DATA wrote. "
            f"Received: --on={','.join(missing)}"
        )
    return found


def _on(place, rows):
    """Rows with the measures on other data in the place of their own."""
    end = f"_on_{place}"
    return {
        seed: {name: row[name] for name in _NAMES if name in row}
        | {
            name.removesuffix(end): value
            for name, value in row.items()
            if name.endswith(end)
        }
        for seed, row in rows.items()
        if row["diverged"] or any(name.endswith(end) for name in row)
    }
