"""What columns hold, and which of a file do: by their names or by options."""

from collections.abc import Iterable, Mapping, Sequence
from os.path import commonprefix
from typing import Any, NamedTuple

from keras_calib.backend.errors import value_error

__all__ = [
    "ROLES",
    "Role",
    "Roles",
    "check_one_role",
    "check_present",
    "column_of",
    "find_roles",
]


class Role(NamedTuple):
    """What a column may hold.

    Attributes:
        names: Its names by default, of which the first that is there counts.
            With none it is only read where it is asked for.
        told: What the help of its flag says.
        kind: `"numbers"`, `"texts"`, or `"gaps"` for texts that may be missing.
    """

    names: tuple[str, ...]
    told: str
    kind: str = "texts"


# The flag of a role is its name.
ROLES = {
    "labels": Role(
        ("label", "labels"),
        "column of the true class or answer, as an id or a name",
        "gaps",
    ),
    "logits": Role(("logits", "logit"), "columns of logits", "numbers"),
    "probs": Role(("probs", "prob"), "columns of probabilities", "numbers"),
    "confidence": Role(
        ("confidence",),
        "column of the probability of the predicted class",
        "numbers",
    ),
    "score": Role(
        ("score",), "column of the score, higher for surer", "numbers"
    ),
    "correct": Role(
        ("correct",), "column that says what was right, as 1 or 0", "gaps"
    ),
    "predicted": Role(
        ("predicted", "prediction", "pred"),
        "column of the predicted class, or of the given answer",
    ),
    "accepted": Role(("accepted", "accept"), "column of what was accepted"),
    "ids": Role(("id", "ids", "request_id"), "column of the ids"),
    "time": Role(("time", "timestamp"), "column of the time"),
    "weights": Role(
        ("sample_weight",),
        "column of weights; by default sample_weight, if there is one",
        "numbers",
    ),
    "groups": Role((), "column of groups, such as tasks"),
    "cost": Role(("cost",), "column of what answers cost", "numbers"),
}
_VOTES = "votes", "vote", "labels", "label"


class Roles(NamedTuple):
    """Names of the columns that are read.

    Attributes:
        labels: Labels; of top-1 records without `predicted`, correctness.
        outputs: Column of each class, one column of all, or confidences.
        from_logits: Whether outputs are logits.
        top1: Whether outputs are confidences.
        predicted: Predicted classes, or None.
        weights: Weights, or None.
        ids: Names of the samples, or None.
        class_names: Names of the classes, or None.
        votes: Column of the votes for each class, one column of all, or none
            if labels are class ids.
    """

    labels: str
    outputs: list[str]
    from_logits: bool
    top1: bool
    predicted: str | None
    weights: str | None
    ids: str | None
    class_names: Sequence[str] | None
    votes: Sequence[str] = ()


def check_one_role(columns: Iterable[tuple[str, str | None]]) -> None:
    """Raises ValueError for a column that two options give."""
    options: dict[str, str] = {}
    for option, name in columns:
        if name and name in options:
            raise value_error(
                f"`{name}` must be the column of one option; the other needs "
                "a column of its own",
                options=[options[name], option],
            )
        options[name or ""] = option


def check_present(file: str, names: list[str], wanted: Sequence[str]) -> None:
    """Raises ValueError for names that no column has."""
    if absent := [x for x in wanted if x not in names]:
        raise value_error(
            f"{file} must have the columns that are asked for",
            absent=absent[:20],
            columns=names[:20],
        )


def column_of(role: str, given: str | None, names: Sequence[str]) -> Any:
    """The column that an option gives, or the first of the role's own names.

    None if there is neither.
    """
    own = (x for x in ROLES[role].names if x in names)
    return given or next(own, None)


def find_roles(
    file: str, names: list[str], columns: Mapping[str, Any]
) -> Roles:
    """What the columns `names` of a file are; ValueError if they are not.

    `columns` are the options of `PredictionFile`.
    """
    roles = _found_roles(file, names, columns)
    labels = "--labels" if roles.predicted or not roles.top1 else "--correct"
    outputs = "--logits" if roles.from_logits else "--probs"
    outputs = "--confidence" if roles.top1 else outputs
    used = [(labels, x) for x in roles.votes or [roles.labels]]
    used.append(("--predicted", roles.predicted or ""))
    # What has classes may tell samples and groups apart too.
    classes = () if roles.votes else {x for _, x in used}
    used += [(outputs, x) for x in roles.outputs]
    used.append(("--weights", roles.weights or ""))
    texts = {roles.ids or "": "--ids"}
    texts |= dict.fromkeys(columns.get("groups", ()), "--groups")
    used += [(option, x) for x, option in texts.items() if x not in classes]
    check_one_role(used)
    return roles


def _found_roles(
    file: str, names: list[str], columns: Mapping[str, Any]
) -> Roles:
    asked: dict[str, Any] = {role: columns.get(role) for role in ROLES}
    votes = columns.get("votes", False)
    single = ["confidence", "correct", "predicted", "weights", "ids"]
    wanted = [asked[x] for x in single + ["labels"] * (not votes)]
    wanted += columns.get("groups", ())
    check_present(file, names, [x for x in wanted if x is not None])
    weights, labels, predicted, correct = (
        column_of(role, asked[role], names)
        for role in ("weights", "labels", "predicted", "correct")
    )
    if votes:
        labels = asked["labels"] or "votes"
    known = columns.get("class_names")
    others = weights, asked["ids"]
    kinds = {"logits": True, "probs": False}
    given = {kind: asked[kind] for kind in kinds if asked[kind] is not None}
    starts = {text: kind for kind, text in given.items()}
    if not given and asked["confidence"] is None:
        starts = {x: kind for kind in kinds for x in ROLES[kind].names}
    found = [
        (kinds[kind], outputs)
        for text, kind in starts.items()
        if (outputs := _class_columns(file, names, text, known))
    ]
    if given and not found:
        ((kind, text),) = given.items()
        raise value_error(
            f"{file} must have the columns of --{kind}: one, or those whose "
            "names are this start, `_` and the class. For other names, give a "
            "pattern with one * in place of the class, or all names with "
            "commas between them",
            columns=names[:20],
            **{f"--{kind}": text},
        )
    # With logits and probabilities in one file, neither is taken by chance.
    if len(found) == 1 and labels:
        ((is_logits, (outputs, classes)),) = found
        read = outputs, is_logits, False, None, *others, classes
        if not votes:
            return Roles(labels, *read)
        called = _VOTES if asked["labels"] is None else (labels,)
        return Roles(labels, *read, _vote_columns(file, names, called, classes))
    confidence = asked["confidence"] or "confidence"
    if not found and confidence in names and not votes:
        records = [confidence], False, True
        if asked["correct"] is None and predicted and labels:
            return Roles(labels, *records, predicted, *others, known)
        if correct is not None:
            return Roles(correct, *records, None, *others, None)
    lone = ""
    if confidence in names and not (correct or labels):
        lone = (
            ". Confidences alone say nothing of calibration: add a column "
            "`correct`, 1 for a right answer and 0 for a wrong one, to a part "
            "of the rows drawn at random, and report that part"
        )
    raise value_error(
        f"{file} must have `label` or `labels`, and either `logits` or "
        "`probs`, which a table may give as `logit_0`, ... or `prob_0`, ...; "
        "or else `confidence`, with `correct` or with `predicted` and "
        "`label`. Give columns of other names by --labels, --logits, --probs, "
        "--confidence, --correct and --predicted; --votes reads labels of "
        f"several annotators, with `logits` or `probs`{lone}",
        columns=names[:20],
    )


def _vote_columns(
    file: str,
    names: list[str],
    called: Sequence[str],
    classes: Sequence[str] | None,
) -> list[str]:
    """Columns of votes in the order of the classes, by what they are called."""
    for text in called:
        if found := _class_columns(file, names, text, classes):
            return found[0]
    raise value_error(
        f"{file} must have the votes that --votes reads: an array or lists "
        "named `votes` or `labels`, or columns `votes_0`, ...; --labels gives "
        "another name",
        columns=names[:20],
    )


def _class_columns(
    file: str, names: list[str], text: str, classes: Sequence[str] | None
) -> tuple[list[str], Sequence[str] | None] | None:
    """The columns in the order of the classes, and names of these.

    `classes` are the names that are known already.
    """
    if text in names:
        return [text], classes
    if "," in text:
        listed = text.split(",")
        check_present(file, names, listed)
        cut = len(commonprefix(listed).rpartition("_")[0])
        own = [x[cut:].removeprefix("_") for x in listed]
        return listed, classes or (None if own[0].isdecimal() else own)
    start, star, end = text.partition("*")
    starts = [start] if star else [f"{start.rstrip('_')}_", start]
    for start in starts:
        found = {
            x[len(start) : len(x) - len(end)]: x
            for x in names
            if x.startswith(start)
            and x.endswith(end)
            and len(x) > len(start) + len(end)
        }
        numbered = {int(k): x for k, x in found.items() if k.isdecimal()}
        if numbered:
            return _in_order(file, numbered, f"{start}{{}}{end}", classes)
        # "logit" must not take "logits_note": names of classes need a "_".
        if found and (star or start.endswith("_")):
            classes = classes or list(found)
            if {*classes} != {*found}:
                raise value_error(
                    f"{file} must have a column of each class and no other",
                    columns=list(found.values())[:20],
                    class_names=list(classes)[:20],
                )
            return [found[x] for x in classes], classes
    return None


def _in_order(
    file: str,
    numbered: dict[int, str],
    form: str,
    classes: Sequence[str] | None,
) -> tuple[list[str], Sequence[str] | None]:
    """Columns by their numbers; those from 1 on are names of classes."""
    numbers, last = sorted(numbered), len(numbered) - 1
    if numbers == [*range(1, last + 2)]:
        classes = classes or [*map(str, numbers)]
    elif numbers != [*range(last + 1)]:
        raise value_error(
            f"{file} must have `{form.format(0)}` to `{form.format(last)}`, "
            "one for each class; names with commas between them give another "
            "order",
            columns=list(numbered.values())[:20],
        )
    return [numbered[k] for k in numbers], classes
