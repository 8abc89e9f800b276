"""The flags of a recipe: a set-up and a loss, each in a file of its own.

A set-up names data, network, optimizer and schedule
(`recipes/setups/cifar10_resnet50.flags`), a loss what is trained with and its
hyperparameters (`recipes/losses/acls.flags`); any two combine.
"""

import ast
import math
import sys
from typing import Any, NamedTuple

from absl import flags

from config import data_flags, training_flags
from config.flag_order import check_flag_order


class Setup(NamedTuple):
    """What is trained on what, and how, but for the loss.

    The fields are those of the flags; see their help.
    """

    setup: str
    task: str
    data: str
    test_split: str | None
    validation: float
    validation_of: str
    random_split: bool
    test_share: float | None
    extra_annotations: bool
    stratified: bool
    net: str
    weights: str | None
    dropout: float | None
    train_vectors: bool
    pool_stride: int
    output_stride: int
    synchronized: bool
    image_size: list[int]
    resize: int | None
    interpolation: str
    antialias: bool
    augment: str
    scale: float
    jitter: float
    normalize: str
    objects: str | None
    alone: bool
    class_map: str | None
    cap_classes: int | None
    sequence_length: int
    tokens: str
    num_words: int
    batch_size: int
    epochs: int
    optimizer: str
    learning_rate: float
    momentum: float
    nesterov: bool
    coupled_decay: float
    weight_decay: float
    schedule: str
    decay_epochs: list[int]
    decay_factor: float
    warmup_epochs: int
    power: float
    time_decay: float
    backbone_rate: float
    clip_norm: float | None
    sam_rho: float
    keep: str
    margin: float
    ignore_class: int | None
    pixels_per_image: int
    before_interpolation: bool
    background: int | None
    per: str
    temperatures: list[float]


class Method(NamedTuple):
    """What is trained with.

    Attributes:
        method: Name of the method in tables.
        loss: A loss class of this library, or `CrossEntropy`.
        loss_option: Its arguments.
        fidelity: Name of the loss that is its `fidelity`, or None.
        fidelity_option: Arguments of that.
        train_model: Name of a model class of this library, or None.
        model_option: Its arguments.
        mix: `cutmix`, `mixup`, `ricap` or None.
        mix_share: Share of the batches that are mixed.
        context_share: Share of images shown without their objects.
    """

    method: str
    loss: str
    loss_option: dict[str, Any]
    fidelity: str | None
    fidelity_option: dict[str, Any]
    train_model: str | None
    model_option: dict[str, Any]
    mix: str | None
    mix_share: float
    context_share: float


class Options(NamedTuple):
    """Where and how it is run; nothing here changes what is learnt, but
    `seed`, `precision` and the limit on steps.
    """

    data_dir: str | None
    annotations: str | None
    vectors: str | None
    download: bool
    seed: int
    strategy: str
    logical_devices: int | None
    precision: str
    steps_per_epoch: int | None
    jit: bool
    resume: bool
    tensorboard: bool
    export: bool
    workdir: str
    verbose: int


# Flags are those of the script that calls `define`: its --help lists them.
flags.disclaim_key_flags()


def define(values=flags.FLAGS):
    """Defines all flags of a recipe, once for all scripts of a process."""
    if "setup" in values:
        return
    data_flags.define_data(values)
    training_flags.define_network(values)
    training_flags.define_optimizer(values)
    training_flags.define_method(values)
    training_flags.define_options(values)


def read(values=flags.FLAGS):
    """`(setup, method, options)` of parsed flags.

    Raises:
        app.UsageError: If a flag file changes a flag before it.
        flags.IllegalFlagValueError: If an option is not `name=value`.
    """
    if values is flags.FLAGS:
        check_flag_order(sys.argv, define, read)
    found = {
        name: values[name].value
        for kind in (Setup, Method, Options)
        for name in kind._fields
    }
    for name in ("image_size", "decay_epochs"):
        if not all(number.isdigit() for number in found[name]):
            raise flags.IllegalFlagValueError(
                f"`--{name}` must be whole numbers with commas between. "
                f"Received: --{name}={','.join(found[name])}"
            )
        found[name] = [int(number) for number in found[name]]
    found["temperatures"] = read_temperatures(values)
    for name in ("loss_option", "fidelity_option", "model_option"):
        found[name] = dict(_option(name, text) for text in found[name])
    return tuple(
        kind(**{name: found[name] for name in kind._fields})
        for kind in (Setup, Method, Options)
    )


def defaults():
    """`(setup, method, options)` of no flags."""
    values = flags.FlagValues()
    define(values)
    values([""])
    return read(values)


def read_temperatures(values):
    """The numbers of `--temperatures`.

    Raises:
        flags.IllegalFlagValueError: If one is none, or not above 0.
    """
    texts = values["temperatures"].value
    try:
        found = [float(text) for text in texts]
    except ValueError:
        found = [0.0]
    if not all(0 < t < math.inf for t in found):
        raise flags.IllegalFlagValueError(
            "`--temperatures` must be numbers above 0 with commas between. "
            f"Received: --temperatures={','.join(texts)}"
        )
    return found


def _option(flag, text):
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise flags.IllegalFlagValueError(
            f"`--{flag}` must be name=value. Received: --{flag}={text}"
        )
    return name, literal(value)


def literal(text):
    """A number, tuple or other Python value; else the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def check_task(setup, task):
    """Raises unless this script is the one for the set-up.

    Raises:
        flags.Error: If it is not.
    """
    if setup.task != task:
        script = {
            "classification": "train_classifier.py",
            "detection": "train_detection.py",
            "segmentation": "train_segmentation.py",
            "text": "train_text.py",
        }[setup.task]
        raise flags.Error(
            f"`--task` must be {task} for this script; the set-up is one of "
            f"{script}. Received: --task={setup.task}, --setup={setup.setup}"
        )
