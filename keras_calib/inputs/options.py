"""Options of how labels and predictions are read, of batches and of arrays."""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, TypedDict, TypeVar, get_type_hints

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.checks import check_flag, check_in, check_integer

_Taker = TypeVar("_Taker", bound=Callable)


class ArrayOptions(TypedDict, total=False):
    """Options of every exact function of whole arrays.

    Attributes:
        from_logits: Whether the predictions are logits. Confidences that
            round to 1 in float32 differ only as logits. Defaults to False.
        sample_weight: Weights `(n, ...)` of the shape of the class ids, or
            `(n,)`, finite and >= 0. Whole numbers are frequency weights, the
            numbers of repeats of a sample. Fractional weights are its share
            of the mass. None weights all samples equally.
        ignore_class: Class id of the samples to leave out, or None.
        votes: Whether labels are rows of votes `(n, ..., num_classes)`, as
            with `labels="votes"` in metrics. Defaults to False.
    """

    from_logits: bool
    sample_weight: Any
    ignore_class: int | None
    votes: bool


class GivenTogether:
    """Abstract: labels, outputs and how they are read, in one object.

    Functions that take `labels, outputs` take it in their place.
    """

    labels: Any = property()
    outputs: Any = property()
    # As in `ArrayOptions`.
    options: Any = property()
    kind: Any = property()
    units: Any = property()

    def outcomes(self) -> Any:
        """The rows that count, as `Outcomes`."""
        raise NotImplementedError

    def arguments(
        self, outputs: Any, told: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Labels, outputs and options, which must not be told again."""
        again = [
            name
            for name in (
                "correct",
                "ids",
                *sorted(ArrayOptions.__annotations__),
            )
            if not (told.get(name) is None or told[name] is False)
        ]
        again += ["outputs"] * (outputs is not None)
        if again:
            raise type_error(
                f"`{again[0]}` must not be given beside `Predictions`, which "
                "tell it",
                arguments=again,
            )
        return self.labels, self.outputs, self.options

    @property
    def reading(self) -> dict[str, Any]:
        """The options that are no weights and no defaults."""
        return {
            name: x
            for name, x in self.options.items()
            if name != "sample_weight" and not (x is None or x is False)
        }

    def with_columns(self, columns: dict[Any, Any]) -> "GivenTogether":
        """The same rows with other columns, such as `"sample_weight"`."""
        raise NotImplementedError


def told(labels: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options of arrays, or those that `Predictions` in their place tell."""
    return labels.options if isinstance(labels, GivenTogether) else options


def is_log(labels: Any) -> bool:
    """Whether it is a log of correctness and confidence alone."""
    return isinstance(labels, GivenTogether) and labels.kind == "records"


def check_classes(told: GivenTogether) -> None:
    """Raise unless it has outputs of classes of which one is true."""
    if told.kind in ("classes", "votes"):
        return
    advice = "a log of correctness and confidence does not have them"
    if told.kind == "labels":
        advice = (
            "measure several labels with `labels.MultiLabelMetric`, or one of "
            "them as two classes, `labels[:, k]` with `outputs[:, k]`"
        )
    raise value_error(
        "`Predictions` must have outputs of all classes here, of which one is "
        f"true: {advice}",
        kind=told.kind,
    )


def taken(
    given: Mapping[str, Any], options: type, passed_on: type | None = None
) -> tuple[SimpleNamespace, dict[str, Any]]:
    """Options of a TypedDict, by default what they say, and what is left.

    An option is `Annotated` with its default, or has None. Those of the
    TypedDict `passed_on` are left.
    """
    known = _defaults(options)
    if passed_on is not None:
        known = {k: known[k] for k in known.keys() - _defaults(passed_on)}
    found = {k: given.get(k, x) for k, x in known.items()}
    rest = {k: x for k, x in given.items() if k not in known}
    return SimpleNamespace(**found), rest


@functools.cache
def _defaults(options: type) -> dict[str, Any]:
    hints = get_type_hints(options, include_extras=True)
    return {k: getattr(x, "__metadata__", (None,))[0] for k, x in hints.items()}


def explaining(*options: type) -> Callable[[_Taker], _Taker]:
    """Says in the docstring of what takes options what each of them is.

    Their TypedDicts say it; it goes to the end of `Args:`.
    """

    def explained(taker: _Taker) -> _Taker:
        text = inspect.cleandoc(taker.__doc__ or "")
        head, title, rest = text.partition("Args:\n")
        args, gap, rest = rest.partition("\n\n")
        told = [inspect.cleandoc(x.__doc__ or "") for x in options]
        args = "\n".join(
            [args, *(x.partition("Attributes:\n")[2] for x in told)]
        )
        taker.__doc__ = head + title + args + gap + rest
        return taker

    return explained


def filled(
    name: str, given: Mapping[str, Any], options: type
) -> SimpleNamespace:
    """All options of a TypedDict that the callable `name` takes.

    Raises TypeError for an option that it does not have.
    """
    found, rest = taken(given, options)
    for option in rest:
        raise type_error(
            f"`{option}` must be an argument of `{name}`",
            arguments=sorted(vars(found)),
        )
    return found


class ReadOptions(NamedTuple):
    """How labels and predictions are read, as `StreamingMetric` explains it."""

    from_logits: bool = False
    axis: int = -1
    ignore_class: int | None = None
    objectness: bool = False
    pixels_per_image: int | None = None
    seed: int = 0
    jit_compile: bool = False
    # Output to read of a model with several.
    output: Any = None
    labels: str = "classes"
    # Samples side by side, of which one that is invalid leaves out all.
    columns: int = 1
    # What errors call labels and outputs, as Keras does or as a user gave them.
    names: tuple[str, str] = ("y_true", "y_pred")

    @property
    def votes(self) -> bool:
        """Whether labels are rows of votes."""
        return self.labels == "votes"

    def of_metric(self) -> dict[str, Any]:
        """The same options as arguments of a streaming metric."""
        named = self._asdict()
        for name in ("output", "columns", "names"):
            del named[name]
        if not self.votes:
            # States stored before there was a choice are those of classes.
            del named["labels"]
        if self.pixels_per_image is None:
            del named["pixels_per_image"], named["seed"]
        return named


def check_reading(
    axis: Any,
    ignore_class: Any,
    from_logits: Any = False,
    labels: Any = "classes",
    objectness: bool = False,
) -> None:
    """Raise unless the options of labels and predictions go together."""
    check_flag("from_logits", from_logits)
    check_integer("axis", axis)
    if ignore_class is not None:
        check_integer("ignore_class", ignore_class)
    check_in("labels", labels, ("classes", "votes"))
    if labels == "votes" and (objectness or ignore_class is not None):
        raise value_error(
            '`labels="votes"` reads rows of votes, without pairs with '
            "objectness and without `ignore_class`: give the samples to leave "
            "out a weight of 0",
            objectness=objectness,
            ignore_class=ignore_class,
        )
