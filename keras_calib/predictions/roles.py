"""What columns hold, and which of a file do: by their names or as told."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from os.path import commonprefix
from typing import Annotated, Any, NamedTuple, TypedDict

from keras_calib.backend.errors import value_error


class FileOptions(TypedDict, total=False):
    """Which columns of a file hold what, and how they are to be read.

    A column that is left out is found by its own name. Columns of classes are
    one array or one column of lists. Or they are given by the start of their
    names, before `_` and the class, or by a pattern with `*` for the class.
    A list of names, or names with commas between them, is in the order of the
    class ids.

    Attributes:
        labels: Column of class ids or names of classes; with `votes` or
            `multi_label` those of all classes.
        logits: Columns of logits.
        probs: Columns of probabilities. One column of a table is that of the
            second of two classes.
        confidence: Column of the probability of the predicted class.
        correct: Column that says what was right, as 1 or 0.
        predicted: Column of the predicted class, to compare with the label.
        sample_weight: Column of weights.
        groups: Columns of groups; `"site"` finds `group_site` too.
        units: Column of what rows belong to.
        ids: Column of names of the rows.
        class_names: Names of the classes, in the order of their ids.
        votes: Whether labels are rows of annotators' votes.
        multi_label: Whether each output is a label of its own.
        ignore_class: Class id of labels that count nowhere.
        separator: Sign between the columns of a `.csv` file. None takes the
            one of `,`, `;`, `|` and tab that is most frequent in its first
            line.
        decimal: Decimal point of a `.csv` file, `"."` or `","`.
    """

    labels: str | Sequence[str] | None
    logits: str | Sequence[str] | None
    probs: str | Sequence[str] | None
    confidence: str | None
    correct: str | None
    predicted: str | None
    sample_weight: str | None
    groups: Sequence[str]
    units: str | None
    ids: str | None
    class_names: Sequence[str] | None
    votes: bool
    multi_label: bool
    ignore_class: int | None
    separator: str | None
    decimal: Annotated[str, "."]


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
    "logits": Role(
        ("logits", "logit"),
        "columns of logits: one column of lists or an array; the start of "
        "names that go on with _ and the class; a pattern with * in place of "
        "the class, such as 'P(*)'; or names with commas between them, in the "
        "order of the class ids",
        "numbers",
    ),
    "probs": Role(
        ("probs", "prob"),
        "the same for probabilities; a single column of numbers is that of the "
        "second of two classes",
        "numbers",
    ),
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
    "units": Role(
        ("unit", "units"), "column of what rows belong to, such as patients"
    ),
    "time": Role(("time", "timestamp"), "column of the time"),
    "sample_weight": Role(
        ("sample_weight",),
        "column of weights; by default sample_weight, if there is one",
        "numbers",
    ),
    "groups": Role((), "column of groups, such as tasks"),
    "cost": Role(("cost",), "column of what answers cost", "numbers"),
}
# Names of the labels by the kind of predictions.
TRUTHS = {
    "classes": ("labels", "label"),
    "votes": ("votes", "vote"),
    "labels": ("multi_label",),
}
# What may be several columns.
_LISTED = "labels", "logits", "probs"
# A column of groups, or with "_" and the name of an attribute.
GROUP = "group"
_WITHOUT_VOTES = "multi_label", "confidence", "correct", "predicted"
# What may not be told together.
_EXCLUDED = (
    *combinations(("logits", "probs", "confidence"), 2),
    *(("correct", x) for x in ("labels", "predicted")),
    *(("votes", x) for x in (*_WITHOUT_VOTES, "ignore_class")),
)


class Roles(NamedTuple):
    """Names of the columns that are read.

    Attributes:
        kind: That of the predictions, as `Predictions.kind`.
        labels: Column of labels, columns of the labels of each class, or none;
            of records without `predicted` that of correctness.
        outputs: Column of each class, one column of all, or confidences.
        from_logits: Whether outputs are logits.
        sample_weight: Column of weights, those of each label, or none.
        groups: Columns of groups by the name of their attribute.

    Others are as in `FileOptions`.
    """

    kind: str
    labels: list[str]
    outputs: list[str]
    from_logits: bool
    predicted: str | None
    sample_weight: list[str]
    ids: str | None
    units: str | None
    groups: dict[str, str]
    class_names: Sequence[str] | None


def check_one_role(columns: Iterable[tuple[str, str | None]]) -> None:
    """Raises ValueError for a column that two roles have."""
    roles: dict[str, str] = {}
    for role, name in columns:
        if name and name in roles:
            raise value_error(
                f"`{name}` must be the column of one argument; the other needs "
                "a column of its own",
                arguments=[roles[name], role],
            )
        roles[name or ""] = role


def check_told(options: Mapping[str, Any]) -> None:
    """Raises ValueError for options that exclude each other."""
    for one, other in _EXCLUDED:
        told = {x: options.get(x) for x in (one, other)}
        if not any(x is None or x is False for x in told.values()):
            rule = f"`{one}=` and `{other}=` exclude each other: leave one out"
            raise value_error(rule, **told)


def check_present(file: str, names: list[str], wanted: Sequence[str]) -> None:
    """Raises ValueError for names that no column has."""
    if absent := [x for x in wanted if x not in names]:
        raise value_error(
            f"{file} must have the columns that are asked for",
            absent=absent[:20],
            columns=names[:20],
        )


def column_of(role: str, given: str | None, names: Sequence[str]) -> Any:
    """The column that is asked for, or the first of the role's own names.

    None if there is neither.
    """
    own = (x for x in ROLES[role].names if x in names)
    return given or next(own, None)


def group_column(name: str, names: Sequence[str]) -> str:
    """The column of a group, which `Predictions.write` calls `group_NAME`."""
    written = f"{GROUP}_{name}"
    return written if written in names and name not in names else name


def has_outputs(
    file: str, names: list[str], columns: Mapping[str, Any]
) -> bool:
    """Whether a file has logits or probabilities of all classes."""
    return _found_outputs(file, names, columns)[0] is not None


def find_roles(
    file: str, names: list[str], columns: Mapping[str, Any]
) -> Roles:
    """What the columns `names` of a file are; ValueError if they are not.

    `columns` are those of `FileOptions`.
    """
    check_told(columns)
    if not names:
        raise value_error(f"{file} must have samples", columns=names)
    # Names of a list go together, as those with commas do.
    columns = {
        k: tuple(x) if k in _LISTED and isinstance(x, list) else x
        for k, x in columns.items()
    }
    asked: dict[str, Any] = {role: columns.get(role) for role in ROLES}
    # None if names of columns tell it.
    kind = "labels" if columns.get("multi_label") else None
    kind = "votes" if columns.get("votes") else kind
    groups = columns.get("groups") or ()
    groups = (groups,) if isinstance(groups, str) else groups
    single = ["confidence", "correct", "predicted", "units", "ids"]
    single += ["sample_weight", *["labels"] * (kind is None)]
    wanted = [*(asked[x] for x in single), *_groups(groups, names).values()]
    check_present(file, names, [x for x in wanted if x is not None])
    outputs, classes, is_logits = _found_outputs(file, names, columns)
    weights = asked["sample_weight"] or "sample_weight"
    has_weights = weights in names or f"{weights}_0" in names
    found_weights = has_weights and _class_columns(file, names, weights, None)
    others: dict[str, Any] = {
        "sample_weight": found_weights[0] if found_weights else [],
        "ids": column_of("ids", asked["ids"], names),
        "units": column_of("units", asked["units"], names),
        "groups": _groups(groups, names),
    }
    found: Any = None
    if outputs:
        truth = _truth(file, names, asked["labels"], kind, classes)
        found = truth and (*truth, outputs, is_logits, None)
    # With logits and probabilities in one file, neither is taken by chance. In
    # a log without labels, columns may have such names by chance.
    is_asked = asked["logits"] or asked["probs"]
    if not (found or kind or is_asked) and outputs != []:
        found = _log_columns(file, names, asked)
    if not found:
        raise value_error(
            f"{file} must have `label` or `labels`, and either `logits` or "
            "`probs`, which a table may give as `logit_0`, ... or `prob_0`, "
            "...; or else `confidence`, with `correct` or with `predicted` and "
            "`label`. Labels of several annotators are `votes`, and several "
            "labels at once `multi_label`. Give columns of other names by "
            "`labels=`, `logits=`, `probs=`, `confidence=`, `correct=` and "
            "`predicted=`",
            columns=names[:20],
        )
    is_named = found[0] != "records" or found[-1]
    others["class_names"] = classes if is_named else None
    roles = Roles(*found, **others)
    _check_roles(roles)
    return roles


def _check_roles(roles: Roles) -> None:
    """Raises ValueError for a column that is read as two things."""
    is_log = roles.kind == "records"
    outputs = "logits" if roles.from_logits else "probs"
    used = [
        ("labels" if roles.predicted or not is_log else "correct", x)
        for x in roles.labels
    ]
    used.append(("predicted", roles.predicted or ""))
    # What has classes may tell samples and groups apart too.
    classes = {x for _, x in used} if len(roles.labels) == 1 else set()
    used += [("confidence" if is_log else outputs, x) for x in roles.outputs]
    used += [("sample_weight", x) for x in roles.sample_weight]
    # A group may be an id or a unit too.
    texts = dict.fromkeys(roles.groups.values(), "groups")
    texts |= {roles.units or "": "units", roles.ids or "": "ids"}
    used += [(role, x) for x, role in texts.items() if x not in classes]
    check_one_role(used)


def _log_columns(
    file: str, names: list[str], asked: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """Kind, labels, outputs, no logits, and predicted classes of a log."""
    confidence = asked["confidence"] or "confidence"
    if confidence not in names:
        return None
    labels, predicted, correct = (
        column_of(x, asked[x], names)
        for x in ("labels", "predicted", "correct")
    )
    # What was graded counts more than what is spelt alike.
    is_asked = asked["labels"] or asked["predicted"]
    if correct is not None and not is_asked:
        return "records", [correct], [confidence], False, None
    if predicted and labels:
        return "records", [labels], [confidence], False, predicted
    raise value_error(
        f"{file} must say of each `{confidence}` what was right: by a column "
        "`correct`, or by `label` and `predicted`. `correct=`, `labels=` and "
        "`predicted=` give columns of other names. Confidences alone say "
        "nothing of calibration: add `correct`, 1 for a right answer and 0 "
        "for a wrong one, to rows that are drawn at random",
        columns=names[:20],
    )


def _found_outputs(
    file: str, names: list[str], columns: Mapping[str, Any]
) -> tuple[list[str] | None, Sequence[str] | None, bool]:
    """Columns of classes, names of these, and whether they are logits.

    No columns if there are logits and probabilities, None if neither.
    """
    known = columns.get("class_names")
    kinds = {"logits": True, "probs": False}
    given = {x: columns[x] for x in kinds if columns.get(x) is not None}
    starts = {text: kind for kind, text in given.items()}
    if not given and columns.get("confidence") is None:
        starts = {x: kind for kind in kinds for x in ROLES[kind].names}
    found = [
        (*outputs, kinds[kind])
        for text, kind in starts.items()
        if (outputs := _class_columns(file, names, text, known))
    ]
    if given and not found:
        ((kind, text),) = given.items()
        raise value_error(
            f"{file} must have the columns of `{kind}=`: one, or those whose "
            "names are this start, `_` and the class. For other names, give a "
            "pattern with one * in place of the class, or all names with "
            "commas between them",
            columns=names[:20],
            **{kind: text},
        )
    if len(found) == 1:
        return found[0]
    return [] if found else None, known, False


def _truth(
    file: str,
    names: list[str],
    asked: str | None,
    kind: str | None,
    classes: Sequence[str] | None,
) -> tuple[str, list[str]] | None:
    """The kind of predictions, and the columns of their labels."""
    kinds = [*TRUTHS] if kind is None else [kind, "classes"]
    found = [(kind or x, text) for x in kinds for text in TRUTHS[x]]
    for own, text in found if asked is None else [(kind or "classes", asked)]:
        # Labels of each class have numbers: `label_note` is none.
        is_named = {text, f"{text}_0"} & {*names}
        if kind is None and own == "classes" and not is_named:
            continue
        if columns := _class_columns(file, names, text, classes):
            return own, columns[0]
    if kind is None:
        return None
    name = TRUTHS[kind][0]
    argument = "multi_label" if kind == "labels" else kind
    raise value_error(
        f"{file} must have the labels that `{argument}=` reads: an array or "
        f"lists named `{name}` or `labels`, or columns `{name}_0`, ...; "
        "`labels=` gives another name",
        columns=names[:20],
    )


def _groups(asked: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Columns of groups by the name of their attribute."""
    if asked:
        return {x: group_column(x, names) for x in asked}
    start = f"{GROUP}_"
    found = {GROUP: GROUP} if GROUP in names else {}
    own = [x for x in names if x.startswith(start)]
    return found | {x.removeprefix(start): x for x in own}


def _class_columns(
    file: str, names: list[str], text: Any, classes: Sequence[str] | None
) -> tuple[list[str], Sequence[str] | None] | None:
    """The columns in the order of the classes, and names of these.

    `classes` are the names that are known already.
    """
    if text in names:
        return [text], classes
    if isinstance(text, tuple) or "," in text:
        listed = [*text] if isinstance(text, tuple) else text.split(",")
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
            # Those from 1 on are names of classes.
            numbers, last = sorted(numbered), len(numbered) - 1
            if numbers == [*range(1, last + 2)]:
                classes = classes or [*map(str, numbers)]
            elif numbers != [*range(last + 1)]:
                raise value_error(
                    f"{file} must have `{start}0{end}` to "
                    f"`{start}{last}{end}`, one for each class; names with "
                    "commas between them give another order",
                    columns=list(numbered.values())[:20],
                )
            return [numbered[k] for k in numbers], classes
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
