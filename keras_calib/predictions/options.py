"""What is told of predictions, and how a model is run for them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.options import filled


class PredictionFacts(TypedDict, total=False):
    """What is known of predictions beside labels and outputs.

    Attributes:
        sample_weight: Weights of the shape of the class ids, or `(n,)`. Rows of
            weight 0, such as masked ones, count nowhere.
        ignore_class: Class id of labels that count nowhere, or None.
        multi_label: Whether each output is a label of its own, which several
            of may be true at once. Labels are 0 or 1, `(n, ..., labels)`.
        votes: Whether labels are rows of annotators' votes
            `(n, ..., num_classes)`, as counts or shares.
        class_names: Names of the classes or of the labels, in their order.
        groups: Group of each row, `(n,)` or of the shape of the class ids, or
            a dict of such arrays by the name of the attribute.
        units: What rows belong to that depend on each other, `(n,)`, such as
            patients. None if each row is a unit of its own. The pixels of an
            image and the tokens of a text always are one row.
        ids: Names of the rows `(n,)`.
        inputs: What was predicted `(n, ...)`, to be shown.
    """

    sample_weight: Any
    ignore_class: int | None
    multi_label: Annotated[bool, False]
    votes: Annotated[bool, False]
    class_names: Sequence[str] | None
    groups: Any
    units: Any
    ids: Any
    inputs: Any


class ModelOptions(TypedDict, total=False):
    """How a model is run over data, and its outputs are read.

    Attributes:
        from_logits: Whether the model returns logits. None takes it from a
            softmax at its end, its compiled loss, or its last layer.
        ignore_class: Class id that counts nowhere. None takes it from the
            loss.
        output: Name or position of the output, for a model of several.
        pixels_per_image: Number of pixels to keep of each image, chosen by a
            hash, for dense outputs of classes. None keeps all.
        seed: Seed of that choice.
        batch_size: Size of the batches of arrays. Defaults to 32.
        steps: Largest number of batches. None uses all.
        verbose: `"auto"` or 1 for a progress bar, 2 for a line at the end, 0
            for silence.
    """

    from_logits: bool | None
    ignore_class: int | None
    output: str | int | None
    pixels_per_image: int | None
    seed: Annotated[int, 0]
    batch_size: Annotated[int, 32]
    steps: int | None
    verbose: Annotated[str | int, "auto"]


class DataOptions(ModelOptions, total=False):
    """How a model is run over data, and what is known of the rows.

    Attributes:
        groups: As in `Predictions`. A function gives those of a batch from its
            inputs, such as `lambda x: x["site"]`. Arrays need data in a fixed
            order, which are then read twice.
        units: What rows belong to, in the same forms.
        ids: Names of the rows, in the same forms.
        class_names: Names of the classes or labels; None takes the attribute
            `class_names` of the data, or else of the model.
        multi_label: Whether each output is a label of its own; None takes it
            from the compiled loss.
        votes: Whether the labels are rows of annotators' votes.
    """

    groups: Any
    units: Any
    ids: Any
    class_names: Sequence[str] | None
    multi_label: bool | None
    votes: Annotated[bool, False]


def facts_of(from_logits: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is no column; raises for what contradicts itself."""
    given = filled("Predictions", facts, PredictionFacts)
    flags = {
        "from_logits": from_logits,
        "multi_label": given.multi_label,
        "votes": given.votes,
    }
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise type_error(f"`{name}` must be True or False", **{name: flag})
    if given.multi_label and given.votes:
        raise value_error(
            "`votes` must be False for several labels at once", **flags
        )
    names = given.class_names
    if isinstance(names, str):
        raise type_error(
            "`class_names` must be a sequence of names", class_names=names
        )
    kind = "labels" if given.multi_label else "classes"
    return {
        "from_logits": from_logits,
        "ignore_class": given.ignore_class,
        "kind": "votes" if given.votes else kind,
        "class_names": None if names is None else [*map(str, names)],
    }


def fits_within(part: Any) -> Iterator[str]:
    """Ids of the fits of a part, of its calibrator and so on."""
    while part is not None:
        if hasattr(part, "unique_id"):
            yield f"{part.unique_id}-{part.num_fits}"
        part = getattr(part, "calibrator", None)


def check_uncalibrated(predictions: Any, part: Any) -> None:
    """Raises ValueError if a calibrator or selector would calibrate again.

    Another calibrator, or another fit, may go on with calibrated predictions.
    """
    if {*predictions.calibrated_by} & {*fits_within(part)}:
        raise value_error(
            "`Predictions` must be those of the model: this calibrator has "
            "calibrated them already. Leave `calibrate` out before a selector, "
            "which applies its calibrator itself",
            calibrator=getattr(part, "calibrator", None) or part,
        )
