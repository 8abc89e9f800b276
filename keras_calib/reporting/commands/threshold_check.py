"""What `keras-calib verify` does with the file of a threshold of answers."""

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from keras_calib.exporting.certificate_check import CertificateCheck
from keras_calib.exporting.certificate_file import digest_of
from keras_calib.reporting.answer_thresholds import (
    calibrated_confidence,
    load_threshold,
)
from keras_calib.reporting.commands.answer_thresholds import (
    chosen_for,
    data_facts,
    labelled_answers,
)
from keras_calib.reporting.commands.terminal import Progress
from keras_calib.reporting.prediction_files.threshold_file import (
    threshold_facts,
)

__all__ = ["check_threshold_file"]

# Relative error of numbers that come from another version of SciPy.
_CLOSE = 1e-9
# They differ between versions, or are checked by themselves.
_OTHER = "keras_calib", "digest", "data"


def check_threshold_file(
    given: Namespace, progress: Progress
) -> CertificateCheck:
    """Chooses the threshold of a file again, from the log in `--data`."""
    facts = load_threshold(given.path).facts
    checked, not_checked = ["digest of the file"], []
    differences = []
    rest = {name: x for name, x in facts.items() if name != "digest"}
    if "digest" not in facts:
        checked, not_checked = [], ["digest of the file, which has none"]
    elif facts["digest"] != digest_of(rest):
        differences.append("digest: the file was changed after it was written")
    if given.data is None or "data" not in facts:
        not_checked.append(
            "numbers of the threshold (needs the log, and a file that has its "
            "hash)"
        )
    else:
        progress.say("Choosing the threshold again ...")
        differences += _differing(facts, given, progress)
        checked.append("threshold and its numbers, from the log")
    if facts.get("calibrator") is not None:
        not_checked.append("the fit of the calibrator (needs its own log)")
    told = {"kind": "answers", "guarantee": {"statement": _statement(facts)}}
    return CertificateCheck(
        tuple(differences), tuple(checked), tuple(not_checked), told
    )


def _differing(
    facts: dict[str, Any], given: Namespace, progress: Progress
) -> Iterator[str]:
    data, column = facts["data"], facts["column"]
    names = dict.fromkeys(("score", "confidence", "labels", "predicted", "ids"))
    groups = data.get("group") and (given.groups or data["group"])
    names |= {"correct": given.correct, "groups": groups}
    names[column] = getattr(given, column)
    if column == "confidence":
        # A log may have both.
        names["confidence"] = given.confidence or "confidence"
    rows = labelled_answers(
        given.data, Namespace(**names), progress, column == "confidence"
    )
    found = data_facts(rows, data.get("group"))
    if found["rows_sha256"] != data["rows_sha256"]:
        yield (
            f"data: another log than that of the file, with "
            f"{len(rows.score):,} labelled answers instead of "
            f"{facts['num_samples']:,}, or other values"
        )
        return
    score = calibrated_confidence(facts["calibrator"], rows.score)
    again = threshold_facts(
        chosen_for(score, rows, facts["target"]),
        column=column,
        calibrator=facts["calibrator"],
        target=facts["target"],
        data=found,
    )
    for name in sorted({*again, *facts} - {*_OTHER}):
        one, two = facts.get(name), again.get(name)
        if not _agree(one, two):
            yield f"{name}: {one} in the file, {two} from the log"


def _agree(one: Any, two: Any) -> bool:
    """Whether parts of JSON are equal but for rounding."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(
            _agree(x, two[name]) for name, x in one.items()
        )
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_agree, one, two))
    if isinstance(one, float) and isinstance(two, float):
        return abs(one - two) <= _CLOSE * max(abs(one), abs(two))
    return bool(one == two)


def _statement(facts: dict[str, Any]) -> str:
    if facts.get("delta") is None:
        return "no guarantee: the threshold was chosen for a coverage."
    where = "of any group " if facts.get("groups") is not None else ""
    return (
        f"with probability {1.0 - facts['delta']:g} at most "
        f"{facts['certified_risk']:g} of the accepted answers {where}in use "
        f"are wrong ({facts['method']})."
    )
