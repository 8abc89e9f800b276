"""Pipelines from examples to the batches of `fit` and `evaluate`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple, Unpack

import numpy as np
from keras import backend

from keras_calib.backend.late import tensorflow as tf
from keras_calib.data.boxes import check_mask_classes, object_source, selected
from keras_calib.data.crops import (
    Cropped,
    Cropping,
    of_boxed,
    random_bits,
    share_of_objects,
)
from keras_calib.data.epochs import hashed, shuffled_epochs
from keras_calib.data.examples import (
    check_parts,
    name_of,
    read_spec,
    require,
    shard,
    without,
)
from keras_calib.data.mixing import color_jitter
from keras_calib.data.painting import IMAGENET_MEAN, without_objects
from keras_calib.data.validity import has_objects, read_parts
from keras_calib.formulas.targets import (
    check_beta_and_floor,
    objectness_targets,
)
from keras_calib.inputs.checks import (
    check_at_least,
    check_in,
    check_integer,
    check_share,
)
from keras_calib.inputs.labels import CONTEXT
from keras_calib.inputs.options import filled

_TARGETS = ("soft", "pairs", "one_hot", "ids")
_LABEL = "; `object_examples` and `label_by_largest` make one of boxes"
_OBJECTS = " or 'mask', to say where objects are"


class Pipeline(Cropped, total=False):
    """Options of every pipeline of images."""

    preprocess: Callable[[Any], Any] | None
    input_context: Any
    num_parallel_calls: int | None


class TrainingPipeline(Pipeline, total=False):
    """Options of `training_pipeline`, besides those of every pipeline."""

    beta: Annotated[float, 1.0]
    floor: str | None
    scale: Annotated[Sequence[float], (0.08, 1.0)]
    ratio: Annotated[Sequence[float], (3 / 4, 4 / 3)]
    flip: Annotated[bool, True]
    jitter: Annotated[float, 0.0]
    augment: Callable[[dict], dict] | None
    mix: Callable[[Any, Any, Any], tuple[Any, Any]] | None
    context_share: Annotated[float, 0.0]
    fill: Annotated[Sequence[float], IMAGENET_MEAN]
    shuffle_buffer: Annotated[int, 4096]
    sharded: Annotated[bool, False]
    drop_remainder: Annotated[bool, True]


def training_pipeline(
    dataset: Any,
    size: int | Sequence[int],
    batch_size: int,
    num_classes: int,
    *,
    labels: str = "soft",
    seed: int = 0,
    epochs: int | None = None,
    first_epoch: int = 0,
    **options: Unpack[TrainingPipeline],
) -> Any:
    """Makes training batches: shuffled, cropped, labelled by objectness.

    Use it to train on images with boxes or masks. The label of each crop can
    then depend on how much of it the object covers. Batches depend on
    `seed`, the epoch and the data set only, not on parallel calls.

    Args:
        dataset: Examples as `random_resized_crop` takes them, with `label`,
            in an order that does not change. Batches carry the `index` of
            `with_index`.
        size: Height and width of the images, or one number for both.
        batch_size: Number of examples of a batch.
        num_classes: Number of classes.
        labels: `"soft"` for labels smoothed by objectness
            `(batch, num_classes)`. `"pairs"` for class id and objectness
            `(batch, 2)`, -1 for context examples, as
            `AdaptiveLabelSmoothing` takes them. `"one_hot"` or `"ids"`
            `(batch,)` for hard labels.
        beta: Strength of the smoothing of soft targets, in [0, 1]. Defaults to
            `1.0`.
        floor: `"uniform"` to smooth soft targets no further than to the
            uniform distribution; None for no such limit.
        scale, ratio, flip, interpolation, antialias: As for
            `random_resized_crop`.
        jitter: Strength of `color_jitter`; 0 for none. Defaults to `0.0`.
        augment: A function of each cropped example, for example of Keras
            layers by `apply_layers`. If it moves objects, it must give the
            example an `objectness`.
        mix: `cutmix`, `mixup`, `ricap`, or `functools.partial` of one.
        preprocess: A function of each batch of images, float32 in the unit of
            the data set, applied last.
        context_share: Share of the examples with objects that are shown with
            these painted out and a uniform target, in [0, 1]; 0.15 in the
            paper. Defaults to `0.0`.
        fill: The pixel mean that replaces painted objects. Defaults to
            `IMAGENET_MEAN`.
        classes, objects: As for `random_resized_crop`.
        seed: An integer.
        shuffle_buffer: Number of examples held while shuffling: images as they
            are stored, masks decoded. Defaults to `4096`.
        epochs: Number of epochs; None makes an endless data set. Either way,
            pass `steps_per_epoch` to `fit`: the number of examples //
            `batch_size`, rounded up with `drop_remainder=False`.
        first_epoch: Number of the first epoch, to resume training.
        input_context: A `tf.distribute.InputContext`. The worker takes every
            n-th example, and random numbers of its own. `batch_size` is then
            that of one worker.
        sharded: Whether the data set holds the share of this worker only,
            because its builder got `input_context` too. Defaults to `False`.
        drop_remainder: Whether to drop the last, smaller batch of an epoch.
            Defaults to `True`.
        num_parallel_calls: Number of images processed in parallel; None lets
            `tf.data` choose.

    Returns:
        A `tf.data.Dataset` of pairs of images `(batch, height, width,
        channels)`, float32, and labels. If examples have an `index`, labels
        are `{"label": labels, "index": index}`.

    Raises:
        ValueError: If an argument is out of its range, or examples lack what
            it needs. On reading, `tf.errors.InvalidArgumentError` names
            examples with bad boxes, labels or images; leave them out by
            `valid_examples`.

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020, sections 3,
        4.1 and A.3, https://arxiv.org/abs/2009.06432
    """
    given = filled("training_pipeline", options, TrainingPipeline)
    spec, calls = _read(
        dataset, batch_size, num_classes, given.num_parallel_calls
    )
    check_in("labels", labels, _TARGETS)
    check_beta_and_floor(given.beta, given.floor)
    check_at_least("jitter", given.jitter, 0.0)
    check_share("context_share", given.context_share)
    cropping = Cropping.random(
        size, given.scale, given.ratio, given.flip, given
    )
    source = object_source(spec, given.objects, given.classes)
    needs_objects = labels in ("soft", "pairs") or given.context_share > 0
    if needs_objects and source is None and given.augment is None:
        check_parts(spec, "boxes", hint=_OBJECTS)
    require(
        labels != "ids" or not (given.context_share > 0 or "context" in spec),
        "`labels` must not be 'ids' with context examples, whose target is "
        "uniform: use 'soft'",
        labels=labels,
    )
    require(
        given.mix is None or labels in ("soft", "one_hot"),
        "`labels` must be 'soft' or 'one_hot' to be mixed",
        labels=labels,
    )
    source = source if needs_objects else None
    batching = Batching(
        cropping, labels, num_classes, source, given.beta, given.floor
    )
    worker = getattr(given.input_context, "input_pipeline_id", 0)
    if not given.sharded:
        dataset = shard(dataset, given.input_context)
    # Reading an endless data set whose epochs have no batch never returns.
    count = int(dataset.cardinality())
    require(
        count < 0 or count >= (batch_size if given.drop_remainder else 1),
        "`dataset` must have enough examples for a batch: lower `batch_size`",
        examples=count,
        batch_size=batch_size,
    )
    unused = {"boxes", "box_labels", "mask"} & set(spec)
    plain = {"painted", "painted_mask"}.isdisjoint(spec)
    if unused and plain and not needs_objects and given.augment is None:
        # Hard labels of whole images need no boxes or masks in the shuffle.
        dataset = dataset.map(lambda example: without(example, *unused))
    # Half of the key of every random draw.
    root = hashed(seed, worker)

    def crop(epoch: Any, place: Any, example: dict) -> dict:
        key = random_bits([3, 2], tf.stack([root + epoch, place]))
        if given.context_share > 0:
            example = _some_context(
                read_parts(example),
                given.context_share,
                given.fill,
                given.classes,
                key[1],
            )
        return {**batching.crop(example, key[0], given.augment), "key": key[2]}

    def label(batch: dict) -> tuple[Any, Any]:
        images, key = batch["image"], batch["key"][0]
        if given.jitter > 0:
            strengths = ("brightness", "contrast", "saturation")
            images = color_jitter(
                images, key, **dict.fromkeys(strengths, given.jitter)
            )
        y = batching.labels(batch)
        if given.mix is not None:
            images, y = given.mix(images, y, key + 1)
        return _finished(images, y, batch, given.preprocess)

    def one_epoch(epoch: Any, shuffled: Any) -> Any:
        crops = shuffled.enumerate().map(
            partial(crop, epoch), calls, deterministic=True
        )
        batches = crops.batch(batch_size, drop_remainder=given.drop_remainder)
        return batches.map(label, calls, deterministic=True)

    return shuffled_epochs(
        dataset,
        one_epoch,
        seed=seed,
        buffer_size=given.shuffle_buffer,
        epochs=epochs,
        first_epoch=first_epoch,
    ).prefetch(tf.data.AUTOTUNE)


def validation_pipeline(
    dataset: Any,
    size: int | Sequence[int],
    batch_size: int,
    num_classes: int,
    *,
    labels: str = "ids",
    fraction: float = 0.875,
    **options: Unpack[Pipeline],
) -> Any:
    """Makes evaluation batches: the middle of each image, in order.

    Use it for the validation and test data of `training_pipeline`.

    Args:
        dataset: Examples as `random_resized_crop` takes them, with `label`.
        size, batch_size, num_classes: As for `training_pipeline`; the last
            batch may be smaller.
        labels: `"ids"`, class ids `(batch,)`, or `"pairs"`, class id and
            objectness `(batch, 2)`, for metrics with `objectness=True`.
        fraction: Share of the shorter side of the image to keep.
        interpolation, antialias, preprocess, classes, objects: As for
            `training_pipeline`.
        input_context, num_parallel_calls: As for `training_pipeline`.

    Returns:
        A `tf.data.Dataset` of images and labels as `training_pipeline`
        returns them.

    Raises:
        ValueError: If an argument is out of its range, or examples lack what
            it needs. On reading, `tf.errors.InvalidArgumentError` names bad
            examples.

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. 4.2
    """
    given = filled("validation_pipeline", options, Pipeline)
    spec, calls = _read(
        dataset, batch_size, num_classes, given.num_parallel_calls
    )
    check_in("labels", labels, ("ids", "pairs"))
    cropping = Cropping.center(size, fraction, given)
    source = None
    if labels == "pairs":
        source = object_source(spec, given.objects, given.classes)
        if source is None:
            check_parts(spec, "boxes", hint=_OBJECTS)
    batching = Batching(cropping, labels, num_classes, source)

    def crop(example: dict) -> dict:
        return batching.crop(without(example, "context"))

    def label(batch: dict) -> tuple[Any, Any]:
        y = batching.labels(batch)
        return _finished(batch["image"], y, batch, given.preprocess)

    data = shard(dataset, given.input_context).map(
        crop, calls, deterministic=True
    )
    data = data.batch(batch_size).map(label, calls, deterministic=True)
    return data.prefetch(tf.data.AUTOTUNE)


def _read(
    dataset: Any,
    batch_size: int,
    num_classes: int,
    num_parallel_calls: int | None,
) -> tuple[dict, int]:
    """Checks arguments; returns the parts of examples, and parallel calls."""
    check_integer("batch_size", batch_size, 1)
    check_integer("num_classes", num_classes, 2)
    if num_parallel_calls is not None:
        check_integer("num_parallel_calls", num_parallel_calls, 1)
    spec = read_spec(dataset)
    check_parts(spec, "label", hint=_LABEL)
    check_parts(spec, "image")
    return spec, num_parallel_calls or tf.data.AUTOTUNE


def _finished(
    images: Any, y: Any, batch: dict, preprocess: Callable[[Any], Any] | None
) -> tuple[Any, Any]:
    """Images and labels as `fit` takes them."""
    if preprocess is not None:
        images = preprocess(images)
    if "index" in batch:
        y = {"label": y, "index": batch["index"]}
    return images, y


def _some_context(
    example: dict,
    share: float,
    fill: Sequence[float],
    classes: Sequence[int] | None,
    seed: Any,
) -> dict:
    """The example, or with probability `share` only its context."""
    chosen = tf.random.stateless_uniform([], seed) < share
    chosen &= has_objects(example, classes)
    context = without_objects(example, fill, classes)
    plain = {"context": tf.constant(False), **example}
    # Both branches of a condition need the same parts.
    for part in context.keys() - plain.keys():
        nothing = tf.zeros_like(context[part])
        plain[part] = nothing[:0] if part == "painted" else nothing
    return tf.cond(chosen, lambda: context, lambda: plain)


class Batching(NamedTuple):
    """Arguments of a pipeline that say how examples become a batch."""

    cropping: Cropping
    targets: str
    num_classes: int
    source: str | None
    beta: float = 1.0
    floor: str | None = None

    def crop(
        self,
        example: dict,
        seed: Any = None,
        augment: Callable[[dict], dict] | None = None,
    ) -> dict:
        """Crops one example and keeps the parts that its batch needs."""
        kept = {k: example[k] for k in ("index", "context") if k in example}
        kept["label"] = tf.cast(example["label"], "int64")
        kept["name"] = name_of(example)
        example = read_parts(example)
        if augment is not None:
            example = self._with_counted_objects(example)
            shown = augment(self.cropping.complete(example, seed))
            kept["image"] = tf.cast(shown["image"], "float32")
            if self.targets in ("soft", "pairs"):
                share = of_boxed(example, shown["objectness"])
                kept["objectness"] = tf.cast(share, "float32")
            return kept
        shown = self.cropping.cut(example, seed)
        kept["image"] = shown["image"]
        if self.source is not None:
            kept["objectness"] = share_of_objects(
                example, shown, self.source, self.cropping.options.classes
            )
        return kept

    def labels(self, batch: dict) -> Any:
        """Labels of the requested kind; errors name the bad examples."""
        labels, context = batch["label"], batch.get("context")
        wrong = (labels < 0) | (labels >= self.num_classes)
        require(
            ~tf.reduce_any(wrong),
            f"Labels must be >= 0 and < num_classes={self.num_classes}",
            example=tf.boolean_mask(batch["name"], wrong),
            label=tf.boolean_mask(labels, wrong),
        )
        shares: Any = batch.get("objectness")
        if self.targets == "ids":
            return labels
        if self.targets == "pairs":
            if context is not None:
                marked = tf.cast(CONTEXT, shares.dtype)
                shares = tf.where(context, marked, shares)
            return tf.stack([tf.cast(labels, shares.dtype), shares], axis=-1)
        if self.targets == "one_hot":
            shares = tf.ones_like(labels, "float32")
        return self._soft_targets(labels, shares, context)

    def _with_counted_objects(self, example: dict) -> dict:
        """The example with the objects of the chosen classes only."""
        classes = self.cropping.options.classes
        if self.source == "mask":
            example = without(example, "boxes", "box_labels")
            if classes is not None:
                check_mask_classes(classes)
                mask = example["mask"]
                example["mask"] = tf.where(selected(mask, classes), mask, 0)
        elif self.source == "boxes":
            example = without(example, "mask")
            if classes is not None:
                among = selected(example["box_labels"], classes)
                for part in ("boxes", "box_labels"):
                    example[part] = tf.boolean_mask(example[part], among)
        return example

    def _soft_targets(self, labels: Any, shares: Any, context: Any) -> Any:
        """`objectness_targets` in TensorFlow, whatever backend Keras uses."""
        sizes = self.num_classes, self.beta, self.floor

        def make(labels: Any, shares: Any, context: Any = None) -> Any:
            return objectness_targets(labels, shares, *sizes, context)

        given = [x for x in (labels, shares, context) if x is not None]
        if backend.backend() == "tensorflow":
            # For alpha = 1, 1 - alpha can round to less than 0.
            return tf.maximum(make(*given), 0.0)
        targets = tf.numpy_function(
            lambda *arrays: np.maximum(make(*arrays), 0).astype("float32"),
            given,
            tf.float32,
        )
        return tf.ensure_shape(targets, [labels.shape[0], self.num_classes])
