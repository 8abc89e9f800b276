"""Hashes of the data that chose a threshold, in NumPy alone.

The data are rows of a score (float32) and whether the prediction was right (0
or 1), with a group or a cost where these count. Their order does not matter:
rows are sorted by group, from the surest, and right before wrong or cheap
before dear among equal scores.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from keras_calib.selection.choice import Choice
from keras_calib.selection.ladder import Ladder


def rows_of(found: Ladder) -> tuple[np.ndarray, np.ndarray]:
    """Scores and correctness `(n,)` in canonical order, of unweighted data."""
    sums = np.stack([found.accepted, found.loss]).astype("int64")
    rows = np.diff(sums, prepend=0)
    # Infinite scores come last, as -inf.
    never = np.array(found.never, "int64")[:, None]
    sizes, errors = np.concatenate([rows, never], axis=1)
    # -0.0 is 0.0.
    scores = np.append(np.asarray(found.score, "float32") + 0.0, -np.inf)
    scores = np.repeat(scores.astype("float32"), sizes)
    pairs = np.stack([sizes - errors, errors], axis=-1).reshape(-1)
    correct = np.tile(np.array([1, 0], "uint8"), len(sizes))
    return scores, np.repeat(correct, pairs)


def data_hashes(
    found: Sequence[Ladder | None], names: Sequence = ()
) -> tuple[str, str]:
    """SHA-256 of the rows, and of the counts in order of the scores.

    The second is the same on any scale of the score that keeps its order. Those
    of groups are of their names and of the rows of each.
    """
    head = f"groups {json.dumps([*names])}\n" if names else ""
    rows, ranking = (hashlib.sha256(head.encode("ascii")) for _ in range(2))
    for one in found:
        if one is None:
            rows.update(b"rows 0\n")
            ranking.update(b"ranking 0\n")
            continue
        scores, correct = rows_of(one)
        rows.update(f"rows {len(scores)}\n".encode())
        rows.update(scores.astype("<f4").tobytes())
        rows.update(correct.tobytes())
        counts = np.stack([one.accepted, one.loss], axis=-1).astype("<i8")
        ranking.update(f"ranking {len(counts)}\n".encode())
        ranking.update(counts.tobytes())
    return rows.hexdigest(), ranking.hexdigest()


def cost_rows(
    score: np.ndarray, cost: np.ndarray, correct: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, costs and correctness `(n,)` in canonical order."""
    # -0.0 is 0.0.
    score = np.asarray(score, "float32") + np.float32(0.0)
    cost = np.asarray(cost, "float64") + 0.0
    correct = np.asarray(correct).astype("uint8")
    order = np.lexsort((1 - correct, cost, -score))
    return score[order], cost[order], correct[order]


def largest_cost(costs: np.ndarray) -> tuple[float, bool]:
    """The largest entry of a matrix of costs, and whether others are 0."""
    largest = float(costs.max())
    return largest, bool(np.all((costs == 0.0) | (costs == largest)))


def cost_facts(costs: np.ndarray) -> dict[str, Any]:
    """Size, largest entry and SHA-256 of a matrix of costs.

    `one_cost` is True if all other costs are 0.
    """
    largest, one = largest_cost(costs)
    head = f"costs {len(costs)}\n".encode("ascii")
    matrix = (np.asarray(costs, "float64") + 0.0).astype("<f8")
    return {
        "num_classes": len(costs),
        "largest": largest,
        "one_cost": one,
        "sha256": hashlib.sha256(head + matrix.tobytes()).hexdigest(),
    }


def cost_hashes(
    rows: tuple[np.ndarray, np.ndarray, np.ndarray], costs: dict[str, Any]
) -> tuple[str, str]:
    """As `data_hashes`, of `cost_rows`; the first also of `cost_facts`."""
    score, cost, correct = rows
    head = f"cost rows {len(score)} {json.dumps(costs, sort_keys=True)}\n"
    hashed = hashlib.sha256(head.encode("ascii"))
    rest = cost.astype("<f8").tobytes() + correct.astype("uint8").tobytes()
    hashed.update(score.astype("<f4").tobytes() + rest)
    last = np.flatnonzero(np.append(score[1:] != score[:-1], True))
    ranking = hashlib.sha256(f"cost ranking {len(last)}\n".encode("ascii"))
    ranking.update(last.astype("<i8").tobytes() + rest)
    return hashed.hexdigest(), ranking.hexdigest()


def with_hashes(chosen: Choice, costs: np.ndarray | None = None) -> Choice:
    """The facts of a guaranteed threshold with the hashes of its data.

    `costs` is the matrix of a choice by costs.
    """
    ladders = [ladder for ladder, *_ in chosen.tables]
    # A guarantee counts samples; pixels and weighted data have none.
    counts = all(one.counts for one in ladders if one is not None)
    if chosen.delta is None or not counts:
        return chosen
    if chosen.kind == "costs" and costs is not None:
        found = cost_hashes(cost_rows(*chosen.cost_rows), cost_facts(costs))
    elif chosen.kind in ("scores", "groups"):
        found = data_hashes(ladders, chosen.group)
    else:
        return chosen
    return replace(chosen, data_sha256=found[0], ranking_sha256=found[1])
