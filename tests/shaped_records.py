"""Public callables of scores, correctness and groups, for the battery."""

import numpy as np
from odd_inputs import INF, NAN, ODD_WEIGHTS, _first
from shaped_case import Shaped

import keras_calib as kc

_N = 40
_SCORES = np.linspace(0.55, 0.99, _N).astype("float32")
_CORRECT = np.arange(_N) % 5 > 0
_GROUPS = np.arange(_N) % 2
_CLASSES = np.arange(_N) % 3
_PROBS = np.stack([1 - _SCORES, _SCORES], axis=1)

_RANKED = {"NaN": lambda s: _first(s, NAN), "(n, 1)": lambda s: s[:, None]}
_SURE = _RANKED | {
    "infinite": lambda s: _first(s, INF),
    "percent": lambda s: 100 * s,
    "below 0": lambda s: s - 1,
}
_RIGHT = {
    "2": lambda c: c + 1.0,
    "NaN": lambda c: _first(c, NAN),
    "(n, 2)": lambda c: np.stack([c, c], axis=1),
}
_NAMES = {
    "NaN": lambda g: _first(g, NAN),
    "halves": lambda g: g + 0.5,
    "a gap": lambda g: [None, *g[1:].tolist()],
}
_IDS = {
    "-1": lambda y: y - 1,
    "id too large": lambda y: y + 3,
    "NaN": lambda y: _first(y, NAN),
    "half an id": lambda y: y + 0.5,
}
# Groups have names of any kind.
_NAMED = tuple(f"groups {kind}" for kind in ("strings", "objects", "bytes"))
# A dict is of several groupings.
_NAMES_FINE = (*_NAMED, "groups dict")
_ALL = ("sample_weight None", "sample_weight one number")

RECORDS = {
    "by_group": Shaped(
        lambda labels, probs, groups: kc.by_group(
            labels, probs, groups=groups, num_draws=8, min_count=2
        ),
        {"labels": _GROUPS, "probs": _PROBS, "groups": _GROUPS},
        {"labels": _IDS, "probs": _SURE, "groups": _NAMES},
        _NAMES_FINE,
    ),
    "choose_threshold, by group": Shaped(
        # None is one threshold for all.
        lambda groups, **arrays: kc.choose_threshold(
            **arrays, groups=() if groups is None else groups, coverage=0.5
        ),
        {
            "scores": _SCORES,
            "correct": _CORRECT,
            "groups": _GROUPS,
            "sample_weight": np.ones(_N),
        },
        {
            "scores": _RANKED,
            "correct": _RIGHT,
            "groups": _NAMES,
            "sample_weight": ODD_WEIGHTS,
        },
        (*_NAMED, *_ALL),
    ),
    "choose_threshold_for_prior": Shaped(
        lambda **arrays: kc.selection.choose_threshold_for_prior(
            **arrays, target_prior=[0.3, 0.3, 0.4], risk=0.9, delta=0.5
        ),
        {"scores": _SCORES, "correct": _CORRECT, "labels": _CLASSES},
        {"scores": _RANKED, "correct": _RIGHT, "labels": _IDS},
    ),
    "choose_threshold_for_mixtures": Shaped(
        lambda **arrays: kc.selection.choose_threshold_for_mixtures(
            **arrays, risk=0.9, delta=0.5
        ),
        {"scores": _SCORES, "correct": _CORRECT, "groups": _GROUPS},
        {"scores": _RANKED, "correct": _RIGHT, "groups": _NAMES},
        _NAMED,
    ),
    "choose_threshold, by cost": Shaped(
        # None is the correctness.
        lambda cost, **arrays: kc.choose_threshold(
            **arrays,
            cost=() if cost is None else cost,
            largest_cost=1.0,
            coverage=0.5,
        ),
        {
            "scores": _SCORES,
            "cost": 1.0 - _CORRECT,
            "sample_weight": np.ones(_N),
        },
        {
            "scores": _RANKED,
            "cost": {
                "NaN": lambda c: _first(c, NAN),
                "infinite": lambda c: _first(c, INF),
                "below 0": lambda c: c - 0.5,
            },
            "sample_weight": ODD_WEIGHTS,
        },
        _ALL,
    ),
    "control_risks": Shaped(
        lambda scores, labels: kc.selection.control_risks(
            scores, labels, {"risk": 0.9}, delta=0.5
        ),
        {"scores": _SCORES, "labels": _CORRECT},
        {"scores": _RANKED, "labels": _RIGHT},
    ),
}
