"""What a model said on labelled data: told once, and taken by every function.

Nothing here needs Keras, but for what a model is asked.
"""

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Annotated, Any, Self, TypedDict, Unpack

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.checks import generator
from keras_calib.inputs.groups import as_groups, read_groups
from keras_calib.inputs.options import GivenTogether, filled
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics.arrays import as_array
from keras_calib.predictions.roles import FileOptions
from keras_calib.predictions.spool import Spool, is_mapped

if TYPE_CHECKING:
    from keras_calib.predictions.collect import ModelRun

# Numbers of a part in memory.
_BLOCK = 2**20
# Columns that have a row for each example, by the name of their attribute.
_NUMBERS = "labels", "outputs", "sample_weight"
_COLUMNS = (*_NUMBERS, "units", "ids", "inputs")


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
        from_logits: Whether the model returns logits. None takes it from its
            compiled loss, or from its last layer.
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
    seed: int
    batch_size: int
    steps: int | None
    verbose: str | int


class DataOptions(ModelOptions, total=False):
    """How a model is run over data, and what is known of the rows.

    Attributes:
        groups: As in `Predictions`. A function gives those of a batch from its
            inputs, such as `lambda x: x["site"]`. Arrays need data in a fixed
            order, which are then read twice.
        units: What rows belong to, in the same forms.
        class_names: Names of the classes or labels; None takes those of the
            data, if they have the attribute `class_names`.
        multi_label: Whether each output is a label of its own; None takes it
            from the compiled loss.
        votes: Whether the labels are rows of annotators' votes.
    """

    groups: Any
    units: Any
    class_names: Sequence[str] | None
    multi_label: bool | None
    votes: bool


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
        **facts: What else is known, as in `PredictionFacts`.

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
        self._facts = _settings(from_logits, facts)
        # Arrays by column; None until a model was asked.
        self._arrays: dict[str, Any] | None = None
        # The model on its data, which is asked first; None of arrays.
        self.run: ModelRun | None = None
        # Keeps the files of memory-mapped arrays.
        self._spool: Any = None
        # The same rows with outputs in the other form, by its name.
        self._others: dict[str, Predictions] = {}
        given = [labels is not None and outputs is not None]
        given.append(correct is not None and confidence is not None)
        if sum(given) != 1:
            raise type_error(
                "`Predictions` must have `labels` and `outputs`, or else "
                "`correct` and `confidence` of a log",
                labels=type(labels).__name__,
                outputs=type(outputs).__name__,
                correct=type(correct).__name__,
                confidence=type(confidence).__name__,
            )
        weight = facts.get("sample_weight")
        if given[1]:
            self._facts["kind"] = "records"
            columns: dict[Any, Any] = _of_log(correct, confidence)
        else:
            # It needs Keras, for masks.
            from keras_calib.inputs.weights import read_masked

            by_label = self._facts["kind"] == "labels"
            outputs, weight = read_masked(
                outputs, "outputs", weight, by_label=by_label
            )
            labels = _ids_of_names(labels, self.class_names)
            columns = {"labels": labels, "outputs": outputs}
            if outputs.ndim == 1:
                columns["outputs"] = outputs[:, None]
        columns["sample_weight"] = weight
        for name in ("units", "ids", "inputs"):
            columns[name] = facts.get(name)
        self._keep(columns, facts.get("groups"))

    @classmethod
    def of_model(
        cls,
        model: Any,
        data: Any,
        **options: Unpack[DataOptions],
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
            **options: How the model is run, and what is known of the rows, as
                in `DataOptions`.

        Raises:
            TypeError: If the model has several outputs and none is named, or
                `data` is no data set.
            ValueError: If it is not known whether the model returns logits, or
                the data do not end.
        """
        # It needs Keras.
        from keras_calib.predictions.collect import ModelRun

        given: dict[str, Any] = {**options}
        names, votes = given.pop("class_names", None), given.pop("votes", False)
        run = ModelRun(model, data, **given)
        if names is None:
            names = getattr(data, "class_names", None)
        facts = {
            "ignore_class": run.reading.ignore_class,
            "multi_label": run.multi_label,
            "votes": votes,
            "class_names": names,
        }
        made = cls._made(_settings(run.reading.from_logits, facts), None)
        made.run = run
        return made

    @classmethod
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
            **facts: What else is known, as in `PredictionFacts`.

        Raises:
            ValueError: If there is no row, or batches have other numbers of
                classes, kinds of labels or axes than the first.
        """
        # It needs Keras, for masks.
        from keras_calib.predictions.batched import spooled

        spool, columns = spooled(batches, facts.get("multi_label", False))
        made = cls(**columns, from_logits=from_logits, **facts)
        made._spool = spool
        return made

    @classmethod
    def given(
        cls,
        columns: dict[str, Any],
        *,
        from_logits: bool,
        **facts: Unpack[PredictionFacts],
    ) -> Self:
        """Columns as they were given to a function, which checks them."""
        return cls._made(_settings(from_logits, facts), columns)

    @classmethod
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

        Rows are checked as they come, and kept in memory maps of a temporary
        folder, so that memory stays that of a batch. Logs need no Keras.

        Args:
            path: A `.npz`, `.csv`, `.tsv`, `.parquet` or `.jsonl` file.
            **options: Columns of other names and how they are to be read, as
                in `FileOptions`.

        Raises:
            ImportError: If a table needs pyarrow.
            ValueError: If the file has another form, or a value is not what
                its column is for.
        """
        from keras_calib.predictions.reader import read_predictions

        return read_predictions(path, options)

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
        columns = self._columns()
        return {
            name[1]: array
            for name, array in columns.items()
            if isinstance(name, tuple)
        }

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
        if self.from_logits:
            return self.outputs
        from keras_calib.predictions.collect import logits_of_part

        return self._derived("logits", logits_of_part)

    @property
    def probs(self) -> np.ndarray:
        """The outputs as probabilities."""
        self._need_rows("probs")
        if not self.from_logits:
            return self.outputs
        from keras_calib.predictions.collect import probs_of_part

        return self._derived("probs", probs_of_part)

    @property
    def options(self) -> dict[str, Any]:
        """Labels' and outputs' options, as exact functions take them."""
        return {
            "from_logits": self.from_logits,
            "sample_weight": self.sample_weight,
            "ignore_class": self.ignore_class,
            "votes": self.votes,
        }

    def weighted(self, sample_weight: Any) -> Self:
        """The same rows with other weights."""
        columns = {**self._columns(), "sample_weight": sample_weight}
        return self._like(columns, self._spool)

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
        count = len(self)
        size = size or self.rows_of_part()
        for start in range(0, count, size):
            yield self[start : start + size]

    def collect(self) -> Self:
        """The same predictions, held in memory."""
        columns = {
            name: np.array(x) if is_mapped(x) else x
            for name, x in self._columns().items()
        }
        return self._like(columns, None)

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
        if by == "unit":
            given = self.units
        elif by in self.groups:
            given = self.groups[by]
        else:
            names = ["unit", *self.groups]
            raise value_error(f"`by` must be one of {names}", by=by)
        codes = np.arange(len(self))
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
        order = generator(seed).permutation(count)
        chosen[order[:first]] = True
        return self[chosen[codes]], self[~chosen[codes]]

    def with_outputs(
        self, change: Callable[[Self], np.ndarray], *, from_logits: bool
    ) -> Self:
        """The same rows with other outputs, made part by part.

        Args:
            change: Outputs of a part of the predictions, as an array.
            from_logits: Whether they are logits.
        """
        parts = map(change, self.batches(self.rows_of_part()))
        columns, spool = {**self._columns()}, self._spool
        if not is_mapped(self.outputs):
            columns["outputs"] = np.concatenate([*parts])
        else:
            own = Spool()
            for part in parts:
                own.add({"outputs": part})
            columns["outputs"] = own.arrays()["outputs"]
            spool = own, spool
        facts = {**self._facts, "from_logits": from_logits}
        return self._made(facts, columns, spool)

    def with_inputs(self, inputs: Any) -> Self:
        """The same rows with what was predicted, `(n, ...)`."""
        return self._like({**self._columns(), "inputs": inputs}, self._spool)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Any) -> Self:
        """Some of the rows: a slice, their places, or where a mask is True."""
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            if rows.ndim != 1 or rows.dtype.kind not in "biu":
                raise type_error(
                    "`Predictions` must be indexed by a slice, by places of "
                    "rows, or by a mask of them",
                    index=rows,
                )
            if rows.dtype.kind == "b":
                rows = np.flatnonzero(rows)
        columns, spool = self._columns(), self._spool
        copied: dict[Any, Any] = {}
        if not isinstance(rows, slice) and is_mapped(self.outputs):
            # What is on disk stays there.
            own, size = Spool(), self.rows_of_part()
            for start in range(0, len(rows), size):
                some = rows[start : start + size]
                own.add(
                    {
                        name: columns[name][some]
                        for name in _NUMBERS
                        if columns[name] is not None
                    }
                )
            copied, spool = own.arrays(), (own, spool)
        kept = {
            name: None if x is None else x[rows]
            for name, x in columns.items()
            if name not in copied
        }
        return self._like(kept | copied, spool)

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
        if self.from_logits or self.kind == "records":
            return self
        self._need_rows("logits")
        _ = self.logits
        made: Any = self._others["logits"]
        return made

    def unlabelled(self) -> Self:
        """The same rows, all of weight 1, as if class 0 were true."""
        columns = {**self._columns(), "sample_weight": None}
        columns["labels"] = np.zeros(self.shape, "int64")
        return self._like(columns, self._spool)

    def as_event(self) -> Self:
        """A log as outputs `(n, 1)`: the probability that each row is right."""
        columns = {**self._columns(), "outputs": self.outputs[:, None]}
        facts = {**self._facts, "kind": "classes"}
        return self._made(facts, columns, self._spool)

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
        from keras_calib.inputs.top_label import top_of_all

        return top_of_all(self.labels, self.outputs, **self.options)

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

    def _derived(
        self, name: str, change: Callable[[Self], np.ndarray]
    ) -> np.ndarray:
        """Outputs in the other form, made once."""
        if name not in self._others:
            self._others[name] = self.with_outputs(change, from_logits=True)
        return self._others[name].outputs

    def _columns(self) -> dict[Any, Any]:
        """The arrays by name, groups by `("groups", name)`."""
        if self._arrays is None:
            for _ in self._ran():
                pass
        return self._arrays or {}

    def _ran(self) -> Iterator[Self]:
        """The batches of the model as they come, which are kept."""
        run: Any = self.run
        spool, weighs, leads = Spool(), False, set()
        others: dict[Any, list] = {}
        for columns in run.batches():
            # The ends of shorter sequences weigh nothing.
            leads.add(lead := columns["outputs"].shape[1:-1])
            weight = columns["sample_weight"]
            if weight is None:
                weight = np.ones((len(columns["labels"]), *lead), "float32")
            else:
                weighs = True
            spool.add(
                {k: columns[k] for k in ("labels", "outputs")}
                | {"sample_weight": weight}
            )
            for name, x in columns.items():
                if name not in _NUMBERS and name != "inputs":
                    others.setdefault(name, []).append(x)
            yield self.part(columns)
        written = spool.arrays()
        if not written:
            raise value_error("`data` must have batches with a row", rows=0)
        arrays: dict[Any, Any] = dict.fromkeys(_COLUMNS)
        arrays |= written
        arrays |= {k: np.concatenate(x) for k, x in others.items()}
        if not weighs and len(leads) == 1:
            arrays["sample_weight"] = None
        arrays["inputs"] = run.kept_inputs()
        self._arrays, self._spool = arrays, spool

    def _keep(self, columns: dict[Any, Any], groups: Any) -> None:
        """Keeps arrays of one length; ValueError for others."""
        if groups is not None and not isinstance(groups, Mapping):
            groups = {"group": groups}
        for name, x in (groups or {}).items():
            columns["groups", str(name)] = x
        kept: dict[Any, Any] = dict.fromkeys(_COLUMNS)
        lengths = {}
        for name, x in columns.items():
            if x is None:
                continue
            told = name if isinstance(name, str) else f"groups[{name[1]!r}]"
            array = as_array(x, told) if name in _NUMBERS else as_groups(x)
            if array.ndim == 0:
                raise value_error(
                    f"`{told}` must have a row for each prediction",
                    **{f"{told}.shape": ()},
                )
            kept[name], lengths[told] = array, len(array)
        if len({*lengths.values()}) > 1:
            raise value_error(
                "all columns of `Predictions` must have one length", **lengths
            )
        if not (kept["outputs"].size or self.may_be_empty):
            raise value_error(
                "`outputs` must not be empty",
                **{"outputs.shape": kept["outputs"].shape},
            )
        self._arrays = kept

    def part(self, columns: dict[Any, Any]) -> Self:
        """Predictions that are read as these, of other columns."""
        return self._like(columns, None)

    def _like(self, columns: dict[Any, Any], spool: Any) -> Self:
        return self._made(self._facts, columns, spool)

    @classmethod
    def _made(
        cls,
        facts: dict[str, Any],
        columns: dict[Any, Any] | None,
        spool: Any = None,
    ) -> Self:
        """Predictions of columns that need no check, None of a model's."""
        made = cls.__new__(cls)
        made._facts, made.run, made._others = facts, None, {}
        made._arrays, made._spool = columns, spool
        if columns is not None:
            made._arrays = {**dict.fromkeys(_COLUMNS), **columns}
        return made


def _settings(from_logits: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
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
    if flags["multi_label"] and flags["votes"]:
        raise value_error(
            "`votes` must be False for several labels at once", **flags
        )
    names = given.class_names
    if isinstance(names, str):
        raise type_error(
            "`class_names` must be a sequence of names", class_names=names
        )
    kind = "labels" if flags["multi_label"] else "classes"
    return {
        "from_logits": from_logits,
        "ignore_class": given.ignore_class,
        "kind": "votes" if flags["votes"] else kind,
        "class_names": None if names is None else [*map(str, names)],
    }


def _of_log(correct: Any, confidence: Any) -> dict[str, np.ndarray]:
    """Two columns of a log, checked."""
    given = {"correct": correct, "confidence": confidence}
    columns = {
        k: as_array(x, k).astype("float64", copy=False)
        for k, x in given.items()
    }
    for name, x in columns.items():
        right = (x >= 0.0) & (x <= 1.0)
        if x.ndim != 1 or not right.all():
            rule = f"`{name}` must be one number in [0, 1] a row"
            if np.isnan(x).any():
                rule += (
                    "; leave out rows without one, or give them any and the "
                    "`sample_weight` 0: a `Monitor` counts them as answers "
                    "without a label"
                )
            raise value_error(
                rule,
                **{f"{name}.shape": x.shape, "wrong": x[~right][:4].tolist()},
            )
    return {"labels": columns["correct"], "outputs": columns["confidence"]}


def _ids_of_names(labels: Any, names: list[str] | None) -> np.ndarray:
    """Labels as numbers; names of classes as their places."""
    first = labels
    while isinstance(first, list | tuple) and first:
        first = first[0]
    kind = getattr(getattr(labels, "dtype", None), "kind", "")
    if not (isinstance(first, str | bytes) or kind in ("O", "S", "U")):
        return as_array(labels, "labels")
    array = np.asarray(labels)
    texts = np.array([_text(x) for x in array.ravel()])
    places = {name: k for k, name in enumerate(names or [])}
    if unknown := [x for x in dict.fromkeys(texts.tolist()) if x not in places]:
        raise value_error(
            "`labels` must be class ids, or names out of `class_names`",
            unknown=unknown[:4],
            class_names=names,
        )
    ids = np.array([places[x] for x in texts.tolist()], "int64")
    return ids.reshape(array.shape)


def _text(x: Any) -> str:
    return x.decode() if isinstance(x, bytes) else str(x)
