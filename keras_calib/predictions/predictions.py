"""What a model said on labelled data: told once, and taken by every function.

Nothing here needs Keras, but for what a model is asked.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.checks import check_in, generator
from keras_calib.inputs.groups import read_groups
from keras_calib.inputs.options import GivenTogether, explaining
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.predictions import columns as column
from keras_calib.predictions.columns import Gathered, Spool, is_mapped
from keras_calib.predictions.options import (
    DataOptions,
    ModelOptions,
    PredictionFacts,
    facts_of,
)
from keras_calib.predictions.roles import FileOptions

if TYPE_CHECKING:
    from keras_calib.predictions.collect import ModelRun

# Numbers of a part in memory.
_BLOCK = 2**20


@explaining(PredictionFacts)
class Predictions(GivenTogether):
    """Labels, a model's outputs for them, and how these are to be read.

    Every function that takes `labels, outputs` takes it in their place, and is
    then told nothing twice. It is made from arrays here, from a model by
    `of_model`, and from a file by `read`, which `write` makes.

    It has one of four kinds:

    - `"classes"`: outputs of classes that exclude each other,
      `(n, ..., num_classes)`. `(n,)` and `(n, 1)` are of the second of two.
    - `"labels"`: with `multi_label`, outputs of several labels at once.
    - `"votes"`: with `votes`, classes with the shares of annotators' votes.
    - `"records"`: a log of `correct` and `confidence` alone.

    Args:
        labels: Class ids `(n, ...)`, one-hot or soft labels
            `(n, ..., num_classes)`, or names out of `class_names`.
        outputs: Logits or probabilities `(n, ..., num_classes)`.
        from_logits: Whether outputs are logits.
        correct: Whether each prediction of a log was right, `(n,)`, 1 or 0.
        confidence: Probability that a log claims for each, `(n,)`.
        **facts: What else is known:

    Raises:
        TypeError: If neither labels and outputs are given, nor the two columns
            of a log.
        ValueError: If lengths differ, there is no row, or a value of a log is
            out of range.

    Example:

    >>> p = Predictions([0, 1, 1], [[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]],
    ...                 from_logits=True, groups=["a", "b", "a"])
    >>> p
    Predictions(3 rows of 2 classes, logits, groups=['group'])
    >>> len(p[:2])
    2
    """

    # Whether there may be no row.
    may_be_empty = False

    def __init__(
        self,
        labels: Any = None,
        outputs: Any = None,
        *,
        from_logits: bool = False,
        correct: Any = None,
        confidence: Any = None,
        **facts: Unpack[PredictionFacts],
    ):
        self._facts = facts_of(from_logits, facts)
        # Arrays by column; None until a model was asked.
        self._arrays: dict[Any, Any] | None = None
        # The model on its data, which is asked first; None of arrays.
        self.run: ModelRun | None = None
        is_log = correct is not None and confidence is not None
        if is_log is (labels is not None and outputs is not None):
            raise type_error(
                "`Predictions` must have `labels` and `outputs`, or else "
                "`correct` and `confidence` of a log",
                labels=type(labels).__name__,
                outputs=type(outputs).__name__,
                correct=type(correct).__name__,
                confidence=type(confidence).__name__,
            )
        weight = facts.get("sample_weight")
        if is_log:
            self._facts["kind"] = "records"
            columns = column.of_log(correct, confidence)
        else:
            # It needs Keras, for masks.
            from keras_calib.inputs.weights import read_masked

            outputs, weight = read_masked(
                outputs, "outputs", weight, by_label=self.multi_label
            )
            if outputs.ndim == 1:
                outputs = outputs[:, None]
            labels = column.ids_of_names(labels, self.class_names)
            columns = {"labels": labels, "outputs": outputs}
        columns |= {k: facts.get(k) for k in ("units", "ids", "inputs")}
        columns |= {"sample_weight": weight}
        columns |= column.by_name(facts.get("groups"))
        self._arrays = column.checked(columns, self.may_be_empty)

    @classmethod
    @explaining(ModelOptions, DataOptions)
    def of_model(
        cls, model: Any, data: Any, **options: Unpack[DataOptions]
    ) -> Self:
        """The predictions of a model on data, which runs once, when asked.

        The answers are written to a temporary folder as they come, and read
        from there in memory maps, so that memory stays that of a batch. The
        folder is deleted with the object; `collect` holds all in memory.
        Masked rows weigh 0. Replicas of a strategy share each batch.

        Args:
            model: A Keras model that returns `(batch, ..., num_classes)`, or
                `(batch, ..., 1)` for the second of two classes.
            data: Whatever `fit` takes, with labels: arrays `(x, y)` or
                `(x, y, sample_weight)`, or batches of such tuples.
            **options: How the model is run, and what is known of the rows:

        Raises:
            TypeError: If the model has several outputs and none is named, or
                `data` is no data set.
            ValueError: If it is not known whether the model returns logits, or
                the data do not end.
        """
        # It needs Keras.
        from keras_calib.predictions.collect import ModelRun

        run = ModelRun(model, data, options)
        made = cls.of_columns(run.facts, None)
        made.run = run
        return made

    @classmethod
    @explaining(PredictionFacts)
    def of_batches(
        cls,
        batches: Iterable[tuple],
        *,
        from_logits: bool = False,
        **facts: Unpack[PredictionFacts],
    ) -> Self:
        """Predictions that you made batch by batch, on disk as those of models.

        Args:
            batches: `(labels, outputs)` or `(labels, outputs, sample_weight)`
                each, of any iterable that ends. Shorter sequences or images
                end in rows of weight 0.
            from_logits: Whether outputs are logits.
            **facts: What else is known:

        Raises:
            ValueError: If there is no row, or batches have other numbers of
                classes, kinds of labels or axes than the first.
        """
        own: dict[str, Any] = {"class_names": facts.get("class_names")}
        own["multi_label"] = facts.get("multi_label", False)
        columns = column.of_batches(batches, partial(cls, **own))
        return cls(**columns, from_logits=from_logits, **facts)

    @classmethod
    @explaining(FileOptions)
    def read(cls, path: Any, **options: Unpack[FileOptions]) -> "Predictions":
        """The predictions of a file, of this library or of any framework.

        A `.npz` file has arrays, and the others have a column or a list for
        each: `labels` with `logits` or `probs`, or `confidence` with `correct`
        or with `labels` and `predicted`. Names may be singular. Columns of
        classes go on with `_` and the class: `prob_0`, or `prob_cat`, which
        names the class too. There may be `sample_weight`, `ids`, `units`, and
        groups: `group`, or `group_` and the name of each attribute.

        Labels of annotators are `votes`, and several labels `multi_label`.
        Groups, units and ids are read as names. Errors count rows from 1.
        Outputs of `.csv`, `.tsv` and `.jsonl` files are float32 if that holds
        all their digits, as of those that were float32, or else float64.

        Rows are checked as they come, and kept in memory maps of a temporary
        folder, so that memory stays that of a batch. Logs need no Keras.

        Args:
            path: A `.npz`, `.csv`, `.tsv`, `.parquet` or `.jsonl` file.
            **options: Columns of other names, and how they are to be read:

        Raises:
            ImportError: If a table needs pyarrow.
            ValueError: If the file has another form, or a value is not what
                its column is for.
        """
        from keras_calib.predictions.reader import Reader

        return Reader(path, options).read()

    def write(self, path: Any) -> None:
        """Writes a file that `read` reads without any option.

        It is written part by part, and replaces `path` when it is complete.
        Dense outputs, such as those of images, stay arrays in `.npz` files.
        Tables have a row for each pixel, whose unit is the image. What is of
        the ignored class gets a weight of 0. Inputs are not written.

        Args:
            path: A file that ends in `.npz`, `.csv`, `.tsv`, `.parquet` or
                `.jsonl`.

        Raises:
            ImportError: If parquet needs pyarrow.
            ValueError: If the path has another ending.
        """
        from keras_calib.predictions.writer import write_predictions

        write_predictions(self, path)

    @property
    def kind(self) -> str:
        """`"classes"`, `"labels"`, `"votes"` or `"records"`."""
        return self._facts["kind"]

    @property
    def from_logits(self) -> bool:
        """Whether outputs are logits."""
        return self._facts["from_logits"]

    @property
    def ignore_class(self) -> int | None:
        """Class id of labels that count nowhere, or None."""
        return self._facts["ignore_class"]

    @property
    def called(self) -> str:
        """What errors call the outputs, as they were given."""
        return self._facts.get("called", "outputs")

    @property
    def calibrated_by(self) -> tuple[str, ...]:
        """Ids of the fits that `calibrate` has applied to the outputs."""
        return self._facts.get("calibrated_by", ())

    @property
    def multi_label(self) -> bool:
        """Whether each output is a label of its own."""
        return self.kind == "labels"

    @property
    def votes(self) -> bool:
        """Whether labels are rows of annotators' votes."""
        return self.kind == "votes"

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes or labels, in their order, or None."""
        return self._facts["class_names"]

    @property
    def labels(self) -> np.ndarray:
        """The labels as given; of a log, whether each row was right."""
        return self._columns()["labels"]

    @property
    def outputs(self) -> np.ndarray:
        """What the model said `(n, ..., num_classes)`; of a log `(n,)`."""
        return self._columns()["outputs"]

    @property
    def sample_weight(self) -> np.ndarray | None:
        """Weights, 0 for rows that are masked, or None."""
        return self._columns()["sample_weight"]

    @property
    def groups(self) -> dict[str, np.ndarray]:
        """Groups of the rows by the name of the attribute."""
        columns = self._columns().items()
        return {k[1]: x for k, x in columns if isinstance(k, tuple)}

    @property
    def units(self) -> np.ndarray | None:
        """What each row belongs to, or None."""
        return self._columns()["units"]

    @property
    def ids(self) -> np.ndarray | None:
        """Names of the rows, or None."""
        return self._columns()["ids"]

    @property
    def inputs(self) -> Any:
        """What was predicted, or None if it was not kept."""
        return self._columns()["inputs"]

    @property
    def correct(self) -> np.ndarray:
        """Whether each prediction is right, or its share of votes.

        It has the shape of the class ids. What counts nowhere may have any
        value, also in `confidence`.
        """
        return self._top().correct.reshape(self.shape)

    @property
    def confidence(self) -> np.ndarray:
        """Probability of each predicted class, of the shape of the ids."""
        return self._top().confidence.reshape(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the class ids: `(n,)`, and with pixels or tokens theirs."""
        shape = self.outputs.shape
        return shape if self.kind == "records" else shape[:-1]

    @property
    def class_ids(self) -> np.ndarray:
        """The true classes, of the shape of the class ids."""
        self._need_rows("class_ids")
        soft = self.labels.ndim > len(self.shape)
        return self.labels.argmax(axis=-1) if soft else self.labels

    @property
    def num_classes(self) -> int:
        """Number of classes or of labels; 2 of a single output."""
        if self.kind == "records":
            return 2
        size = self.outputs.shape[-1]
        return size if self.multi_label else max(2, size)

    @property
    def logits(self) -> np.ndarray:
        """The outputs as logits: log p of probabilities, float32.

        Those of a single output stay one, its log-odds; so do those of each
        of several labels.
        """
        self._need_rows("logits")
        return self.as_logits().outputs

    @property
    def probs(self) -> np.ndarray:
        """The outputs as probabilities."""
        self._need_rows("probs")
        return (self._other_form if self.from_logits else self).outputs

    @property
    def options(self) -> dict[str, Any]:
        """Labels' and outputs' options, as exact functions take them."""
        return {
            "from_logits": self.from_logits,
            "sample_weight": self.sample_weight,
            "ignore_class": self.ignore_class,
            "votes": self.votes,
        }

    def with_columns(self, columns: dict[Any, Any]) -> Self:
        """The same rows with other columns, such as `"sample_weight"`."""
        return self.part({**self._columns(), **columns})

    def batches(self, size: int | None = None) -> Iterator[Self]:
        """The rows in order, part by part, each of which is in memory.

        While a model runs for the first time, these are its batches, with
        their inputs; `size` then needs all of them first.

        Args:
            size: Number of rows of a part; None takes what a megabyte of
                numbers holds.
        """
        if self._arrays is None and size is None:
            yield from self._ran()
            return
        size = size or self.rows_of_part()
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def collect(self) -> Self:
        """The same predictions, held in memory."""
        columns = self._columns().items()
        return self.part(
            {k: np.array(x) if is_mapped(x) else x for k, x in columns}
        )

    def split(
        self, fraction: float, *, by: str = "unit", seed: int = 0
    ) -> tuple[Self, Self]:
        """Two parts by chance, each in the order of the rows.

        Args:
            fraction: Share of the first part, in (0, 1).
            by: `"unit"`, so that no unit is in both; rows are their own units
                where none are given. Or the name of a group.
            seed: Seed of the draw.

        Raises:
            ValueError: If a part would be empty, or `by` is no group.
        """
        if not 0.0 < fraction < 1.0:
            raise value_error("`fraction` must be in (0, 1)", fraction=fraction)
        known = {"unit": self.units, **self.groups}
        check_in("by", by, [*known])
        codes, given = np.arange(len(self)), known[by]
        if given is not None:
            codes = read_groups(given, np.shape(given), by)[1]
        if codes.ndim > 1:
            raise value_error(
                "`by` must have one value for each row", shape=codes.shape
            )
        count = int(codes.max()) + 1
        first = round(fraction * count)
        if not 0 < first < count:
            raise value_error(
                "`fraction` must leave a unit in each part",
                fraction=fraction,
                units=count,
            )
        chosen = np.zeros(count, bool)
        chosen[generator(seed).permutation(count)[:first]] = True
        return self[chosen[codes]], self[~chosen[codes]]

    def with_outputs(self, change: Callable, facts: dict[str, Any]) -> Self:
        """The same rows with other outputs, made part by part.

        Args:
            change: Outputs of a part of the predictions, as an array.
            facts: `from_logits` of them, and what else is new.
        """
        parts = map(change, self.batches(self.rows_of_part()))
        if is_mapped(self.outputs):
            spool = Spool()
            for part in parts:
                spool.add({"outputs": part})
            outputs = spool.arrays()["outputs"]
        else:
            outputs = np.concatenate([*parts])
        columns = {**self._columns(), "outputs": outputs}
        return self.of_columns(self._facts | facts, columns)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Any) -> Self:
        """Some rows: a slice, their places, or where a mask is True.

        A mask of the shape of the class ids takes tokens or pixels, each as a
        row. Its unit is that of its text or image.
        """
        places = column.places_of(rows, self.shape)
        size = self.rows_of_part()
        return self.part(column.rows_of(self._columns(), places, size))

    def __iter__(self) -> Iterator[Self]:
        return self.batches()

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        if self._arrays is None:
            return "Predictions(of a model that was not asked yet)"
        what = "labels" if self.multi_label else "classes"
        told = f"{len(self):,} rows of {self.num_classes} {what}"
        if self.kind == "records":
            told = f"{len(self):,} records of correctness and confidence"
        else:
            told += ", logits" if self.from_logits else ", probabilities"
        told += ", votes" * self.votes
        if self.outputs.ndim > 2:
            told += f", {self.outputs.shape[1:-1]} each"
        for name in ("sample_weight", "units", "ids"):
            told += f", {name}" * (self._arrays[name] is not None)
        if self.groups:
            told += f", groups={[*self.groups]}"
        return f"Predictions({told})"

    def rows_of_part(self) -> int:
        """Rows of a part whose numbers fit in memory."""
        return max(1, _BLOCK // max(1, self.outputs[0].size))

    def as_logits(self) -> Self:
        """The same predictions, with logits for outputs."""
        is_done = self.from_logits or self.kind == "records"
        return self if is_done else self._other_form

    @cached_property
    def _other_form(self) -> Self:
        """Probabilities in place of logits, or logits of probabilities."""
        # It needs Keras.
        from keras_calib.predictions.collect import in_other_form

        facts = {"from_logits": not self.from_logits}
        return self.with_outputs(in_other_form, facts)

    def as_event(self) -> Self:
        """A log as outputs `(n, 1)`: the probability that each row is right."""
        columns = {**self._columns(), "outputs": self.outputs[:, None]}
        return self.of_columns({**self._facts, "kind": "classes"}, columns)

    def _top(self) -> Outcomes:
        """All predictions as rows, also those that count nowhere."""
        if self.kind == "records":
            score, correct = self.outputs, self.labels
            weight = self.sample_weight
            return Outcomes(score, correct, weight=weight, confidence=score)
        if self.multi_label:
            raise value_error(
                "predictions must be of one class a row to be right or wrong; "
                "each of several labels is on its own: `keras_calib.labels`",
                kind=self.kind,
            )
        # It needs Keras.
        from keras_calib.inputs.top_label import top_label

        return top_label(self.labels, self.outputs, drop=False, **self.options)

    def outcomes(self, every: bool = False) -> Outcomes:
        """The rows that count: scores, correctness, weights and units.

        The unit of a pixel or token is its image or text, if none is given.
        With `every` all rows `(n,)`, with weights of 0 where they do not count.
        """
        found, lead = self._top(), self.shape
        unit = np.arange(lead[0]) if len(lead) > 1 else None
        if self.units is not None:
            unit = read_groups(self.units, lead[:1], "units")[1]
        if unit is not None:
            unit = np.repeat(unit, int(np.prod(lead[1:])))
        found = found._replace(unit=unit)
        if not every:
            return found.counted()
        if found.mask is None:
            return found
        weight = found.mask * (1.0 if found.weight is None else found.weight)
        return found._replace(weight=weight, mask=None)

    def _need_rows(self, name: str) -> None:
        if self.kind == "records":
            raise value_error(
                f"`{name}` must be of all classes, which a log of correctness "
                "and confidence does not have",
                kind=self.kind,
            )

    def _columns(self) -> dict[Any, Any]:
        """The arrays by name, groups by `("groups", name)`."""
        if self._arrays is None:
            for _ in self._ran():
                pass
        return self._arrays or {}

    def _ran(self) -> Iterator[Self]:
        """The batches of the model as they come, which are kept."""
        run: Any = self.run
        gathered = Gathered()
        for columns in run.batches():
            gathered.add(columns, columns["outputs"].shape[:-1])
            yield self.part(columns)
        arrays = gathered.columns()
        if "labels" not in arrays:
            raise value_error("`data` must have batches with a row", rows=0)
        arrays["inputs"] = run.kept_inputs()
        self._arrays = {**dict.fromkeys(column.NAMES), **arrays}

    def part(self, columns: dict[Any, Any]) -> Self:
        """Predictions that are read as these, of other columns."""
        return self.of_columns(self._facts, columns)

    @classmethod
    def of_columns(
        cls, facts: dict[str, Any], columns: dict[Any, Any] | None
    ) -> Self:
        """Predictions of columns that need no check, None of a model's."""
        made = cls.__new__(cls)
        made._facts, made.run, made._arrays = facts, None, None
        if columns is not None:
            made._arrays = {**dict.fromkeys(column.NAMES), **columns}
        return made
