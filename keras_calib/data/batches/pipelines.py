"""From examples to the batches that `fit` and `evaluate` take."""

from collections.abc import Callable
from collections.abc import Sequence
from functools import partial
from typing import Any

from keras_calib.backend.errors import invalid
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.batches.checks import check_common
from keras_calib.data.batches.checks import check_count
from keras_calib.data.batches.checks import check_label
from keras_calib.data.batches.checks import check_parts
from keras_calib.data.batches.checks import read_spec
from keras_calib.data.batches.labelling import Labelling
from keras_calib.data.batches.labelling import checked
from keras_calib.data.batches.labelling import finish
from keras_calib.data.batches.labelling import labels_of
from keras_calib.data.batches.labelling import to_batch
from keras_calib.data.batches.order import each_epoch
from keras_calib.data.batches.order import hashed
from keras_calib.data.transforms.cropping import Cropping
from keras_calib.data.transforms.cropping import object_source
from keras_calib.data.transforms.cropping import read_parts
from keras_calib.data.transforms.crops import check_range
from keras_calib.data.transforms.crops import read_size
from keras_calib.data.transforms.jitter import color_jitter
from keras_calib.data.transforms.painting import IMAGENET_MEAN
from keras_calib.data.transforms.painting import without_objects
from keras_calib.data.transforms.validity import has_objects
from keras_calib.formulas.targets import check_beta_and_floor
from keras_calib.inputs.checks import check_above
from keras_calib.inputs.checks import check_at_least
from keras_calib.inputs.checks import check_at_most
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer

__all__ = ["training_pipeline", "validation_pipeline"]

_TARGETS = ("soft", "pairs", "one_hot", "ids")


def training_pipeline(
    dataset: Any,
    size: int | Sequence[int],
    batch_size: int,
    num_classes: int,
    *,
    targets: str = "soft",
    beta: float = 1.0,
    floor: str | None = None,
    scale: Sequence[float] = (0.08, 1.0),
    ratio: Sequence[float] = (3 / 4, 4 / 3),
    flip: bool = True,
    jitter: float = 0.0,
    augment: Callable[[dict], dict] | None = None,
    mix: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None,
    preprocess: Callable[[Any], Any] | None = None,
    context_share: float = 0.0,
    fill: Sequence[float] = IMAGENET_MEAN,
    classes: Sequence[int] | None = None,
    objects: str | None = None,
    max_boxes: int = 100,
    seed: int = 0,
    shuffle_buffer: int = 4096,
    epochs: int | None = None,
    first_epoch: int = 0,
    input_context: Any = None,
    sharded: bool = False,
    drop_remainder: bool = True,
    num_parallel_calls: int | None = None,
) -> Any:
    """Batches to train on: shuffled, cropped, labelled by objectness.

    What a batch shows depends on `seed`, the epoch and the data set alone,
    not on the number of parallel calls or on other random numbers. Objectness
    is computed for whole batches, where it costs least.

    Args:
        dataset: Examples, see `random_resized_crop`, with `label`, in an
            order that does not change; with `index`, see `with_index`, the
            batches carry it.
        size: Height and width of the images, or one number for both.
        batch_size: Number of examples of a batch.
        num_classes: Number of classes.
        targets: What labels become: `"soft"`, labels smoothed by objectness
            `(batch, num_classes)`, for any loss that takes soft labels;
            `"pairs"`, class id and objectness `(batch, 2)`, -1 for context
            examples, for `AdaptiveLabelSmoothing`;
            `"one_hot"` or `"ids"` `(batch,)`, hard labels.
        beta: As in `objectness_targets`, for soft targets.
        floor: As in `objectness_targets`, for soft targets.
        scale: As in `random_resized_crop`.
        ratio: As in `random_resized_crop`.
        flip: As in `random_resized_crop`.
        jitter: Strength of `color_jitter`; 0 for none.
        augment: What is done to each cropped example before it is batched,
            for instance by Keras layers: see `apply_layers`. Where it moves
            objects, it must give the example an `objectness`.
        mix: `cutmix`, `mixup`, `ricap`, or `functools.partial` of one.
        preprocess: What is done to each batch of images, float32 in the unit
            of the data set, at the end.
        context_share: Share of the examples that are shown with all objects
            painted out and a uniform target, in [0, 1]; the paper's is 0.15.
            Those without objects are never among them.
        fill: The pixel mean that objects are painted over with.
        classes: As in `random_resized_crop`.
        objects: As in `random_resized_crop`.
        max_boxes: Largest number of boxes of an example.
        seed: An integer.
        shuffle_buffer: How many examples are held while shuffling: images
            as they are stored, masks decoded.
        epochs: How many epochs follow one another, or None for no end.
            Either way, pass `steps_per_epoch` to `fit`, the number of
            examples // `batch_size`, rounded up with
            `drop_remainder=False`: without it, `fit` takes all of them for one
            epoch.
        first_epoch: Where training resumes: batches are those that the run
            would have seen without the break.
        input_context: A `tf.distribute.InputContext`: the worker takes every
            n-th example, and random numbers of its own. `batch_size` is that
            of one worker.
        sharded: Whether the builder got `input_context` too, and the data set
            holds the share of this worker alone.
        drop_remainder: Whether to leave out the last, smaller batch of an
            epoch.
        num_parallel_calls: How many images are worked on at a time; chosen by
            `tf.data` if None.

    Returns:
        A `tf.data.Dataset` of pairs of images `(batch, height, width,
        channels)`, float32, and labels; with `index`, of images and
        `{"label": labels, "index": index}`.

    Raises:
        ValueError: If an argument is out of its range, or examples lack what
            it needs. When read, `tf.errors.InvalidArgumentError` with the
            names of the examples: for a box that is none, a label out of
            range, an image that cannot be read. `valid_examples` leaves these
            out.

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020, sections 3,
        4.1 and A.3, https://arxiv.org/abs/2009.06432
    """
    check_common(batch_size, num_classes, num_parallel_calls)
    check_in("targets", targets, _TARGETS)
    check_beta_and_floor(beta, floor)
    check_at_least("jitter", jitter, 0.0)
    check_at_least("context_share", context_share, 0.0)
    check_at_most("context_share", context_share, 1.0)
    check_integer("max_boxes", max_boxes, 1)
    cropping = Cropping(
        read_size(size),
        check_range("scale", scale, most=1.0),
        check_range("ratio", ratio),
        flip=flip,
    )
    spec = read_spec(dataset)
    check_parts(spec, "label", "image")
    check_label(spec["label"])
    source = object_source(spec, objects, classes)
    needs_objects = targets in ("soft", "pairs") or context_share > 0
    if needs_objects and source is None and augment is None:
        check_parts(spec, "boxes")
    has_context = context_share > 0 or "context" in spec
    if has_context and targets == "ids":
        raise ValueError(
            invalid(
                "`targets` must not be class ids where context examples have "
                "uniform targets",
                targets=targets,
            )
        )
    if mix is not None and targets not in ("soft", "one_hot"):
        raise ValueError(
            invalid(
                "`targets` must be 'soft' or 'one_hot' to be mixed",
                targets=targets,
            )
        )
    labelling = Labelling(
        targets,
        num_classes,
        beta,
        floor,
        source if needs_objects else None,
        classes,
        max_boxes,
        "index" in spec,
    )
    worker = 0
    if input_context is not None:
        worker = input_context.input_pipeline_id
        if not sharded:
            dataset = dataset.shard(input_context.num_input_pipelines, worker)
    check_count(dataset, batch_size if drop_remainder else 1)
    plain = not {"painted", "painted_mask"} & set(spec)
    if plain and not needs_objects and augment is None:
        # Hard labels of whole images: boxes and masks are not even shuffled.
        dataset = _without(dataset, "boxes", "box_labels", "mask")
    # Half of the key of every draw.
    root = hashed(seed, worker)

    def crop(epoch: Any, place: Any, example: dict) -> dict:
        key = tf.random.stateless_uniform(
            [3, 2],
            tf.stack([root + epoch, place]),
            minval=None,
            maxval=None,
            dtype="int32",
        )
        if context_share > 0:
            example = _some_context(
                read_parts(example), context_share, fill, classes, key[1]
            )
        batched = to_batch(cropping, example, key[0], labelling, augment)
        return {**batched, "key": key[2]}

    def label(batch: dict) -> tuple[Any, Any]:
        images, key = batch["image"], batch["key"][0]
        if jitter > 0:
            images = color_jitter(
                images,
                key,
                brightness=jitter,
                contrast=jitter,
                saturation=jitter,
            )
        batch = checked(batch, labelling)
        y = labels_of(batch, labelling)
        if mix is not None:
            images, y = mix(images, y, key + 1)
        return finish(images, y, batch, labelling, preprocess)

    calls = num_parallel_calls or tf.data.AUTOTUNE

    def one_epoch(epoch: Any, shuffled: Any) -> Any:
        crops = shuffled.enumerate().map(
            partial(crop, epoch), calls, deterministic=True
        )
        batches = crops.batch(batch_size, drop_remainder=drop_remainder)
        return batches.map(label, calls, deterministic=True)

    return each_epoch(
        dataset,
        one_epoch,
        seed=seed,
        buffer_size=shuffle_buffer,
        epochs=epochs,
        first_epoch=first_epoch,
    ).prefetch(tf.data.AUTOTUNE)


def validation_pipeline(
    dataset: Any,
    size: int | Sequence[int],
    batch_size: int,
    num_classes: int,
    *,
    targets: str = "ids",
    fraction: float = 0.875,
    preprocess: Callable[[Any], Any] | None = None,
    classes: Sequence[int] | None = None,
    objects: str | None = None,
    max_boxes: int = 100,
    input_context: Any = None,
    num_parallel_calls: int | None = None,
) -> Any:
    """Batches to evaluate on: the middle of each image, in order.

    Args:
        dataset: Examples, see `random_resized_crop`, with `label`; of
            `context_examples`, the objects are painted out and labels kept.
        size: Height and width of the images, or one number for both.
        batch_size: Number of examples of a batch; the last may be smaller.
        num_classes: Number of classes.
        targets: `"ids"`, class ids `(batch,)`, or `"pairs"`, class id and
            objectness `(batch, 2)`, for metrics with `objectness=True`.
        fraction: As in `center_crop`.
        preprocess: As in `training_pipeline`.
        classes: As in `random_resized_crop`.
        objects: As in `random_resized_crop`.
        max_boxes: Largest number of boxes of an example.
        input_context: As in `training_pipeline`.
        num_parallel_calls: As in `training_pipeline`.

    Returns:
        A `tf.data.Dataset` as of `training_pipeline`.

    Raises:
        ValueError: As `training_pipeline`.

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020, section 4.2,
        https://arxiv.org/abs/2009.06432
    """
    check_common(batch_size, num_classes, num_parallel_calls)
    check_in("targets", targets, ("ids", "pairs"))
    check_above("fraction", fraction, 0.0)
    check_at_most("fraction", fraction, 1.0)
    check_integer("max_boxes", max_boxes, 1)
    spec = read_spec(dataset)
    check_parts(spec, "label", "image")
    check_label(spec["label"])
    source = (
        object_source(spec, objects, classes) if targets == "pairs" else None
    )
    if targets == "pairs" and source is None:
        check_parts(spec, "boxes")
    cropping = Cropping(read_size(size), fraction=fraction)
    labelling = Labelling(
        targets,
        num_classes,
        source=source,
        classes=classes,
        max_boxes=max_boxes,
        with_index="index" in spec,
    )
    if input_context is not None:
        dataset = dataset.shard(
            input_context.num_input_pipelines, input_context.input_pipeline_id
        )

    def crop(example: dict) -> dict:
        example = {k: v for k, v in example.items() if k != "context"}
        return to_batch(cropping, example, None, labelling, None)

    def label(batch: dict) -> tuple[Any, Any]:
        batch = checked(batch, labelling)
        y = labels_of(batch, labelling)
        return finish(batch["image"], y, batch, labelling, preprocess)

    calls = num_parallel_calls or tf.data.AUTOTUNE
    data = dataset.map(crop, calls, deterministic=True).batch(batch_size)
    return data.map(label, calls, deterministic=True).prefetch(tf.data.AUTOTUNE)


def _without(dataset: Any, *names: str) -> Any:
    if not set(names) & set(dataset.element_spec):
        return dataset
    return dataset.map(
        lambda example: {k: v for k, v in example.items() if k not in names}
    )


def _some_context(
    example: dict,
    share: float,
    fill: Sequence[float],
    classes: Sequence[int] | None,
    seed: Any,
) -> dict:
    """The example, or with probability `share` what surrounds its objects."""
    chosen = tf.random.stateless_uniform([], seed) < share
    if "boxed" in example:
        chosen = tf.logical_and(chosen, example["boxed"])
    chosen = tf.logical_and(chosen, has_objects(example, classes))
    context = without_objects(example, fill, classes)
    plain = {"context": tf.constant(False), **example}
    for part in ("painted", "painted_mask", "fill"):
        if part in context and part not in plain:
            nothing = tf.zeros_like(context[part])
            plain[part] = nothing[:0] if part == "painted" else nothing
    return tf.cond(chosen, lambda: context, lambda: plain)
