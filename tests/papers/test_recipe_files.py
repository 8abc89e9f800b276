"""The flag files of recipes say what their names say, and go together."""

import ast
import functools
import re

import keras
import numpy as np
import pytest
from absl import flags
from cases import array
from config import losses, recipe_flags
from nets import catalogue
from nets.detector import DETECTORS
from recipe_cases import LOSSES, RECIPES, SETUPS, SWEEPS, comment

import keras_calib
from keras_calib.backend.gradients import value_and_grad

DATA = {
    "classification": {
        "caltech_birds2011",
        "cifar10",
        "cifar100",
        "digits",
        "fashion_mnist",
        "imagenet2012",
        "mnist",
        "open_images_v4",
        "tiny_imagenet",
        "tiny_imagenet_boxes",
    },
    "detection": {"canvases/tiny_imagenet_boxes", "coco/2017"},
    "segmentation": {
        "camvid",
        "cityscapes/semantic_segmentation",
        "voc2012",
    },
    "text": {"newsgroups20"},
}


def read(*paths):
    """Set-up, method, options and the axes of a grid, of flag files."""
    values = flags.FlagValues()
    recipe_flags.define(values)
    flags.DEFINE_multi_string("grid", [], "", flag_values=values)
    left = values(["prog", *(f"--flagfile={path}" for path in paths)])
    assert left == ["prog"]
    return (*recipe_flags.read(values), values["grid"].value)


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_temperatures_of_label_relaxation_are_its_sixteen():
    setup, *_ = read(RECIPES / "evaluations" / "label_relaxation.flags")
    steps = [0.25, 0.5, 0.75, *(t / 10 for t in range(10, 21)), 2.5, 3.0]
    assert setup.temperatures == steps and len(steps) == 16
    values = flags.FlagValues()
    recipe_flags.define(values)
    values(["", "--temperatures=1,0"])
    with pytest.raises(flags.IllegalFlagValueError, match="above 0"):
        recipe_flags.read(values)


# Files.


def test_files_cite_where_their_numbers_are_from():
    year = re.compile(r"\b(?:1950|20[12][0-9])\b")
    files = SETUPS + LOSSES + SWEEPS
    assert len(files) > 70
    assert not [x.stem for x in files if not year.search(comment(x))]


def test_lines_are_short_and_each_flag_stands_once():
    several = {"--grid"} | {
        f"--{kind}_option" for kind in ("loss", "fidelity", "model")
    }
    for path in SETUPS + LOSSES + SWEEPS:
        lines = lines_of(path)
        assert max(map(len, lines)) <= 80, path.stem
        assert all(line[:1] == "#" or line[:2] == "--" for line in lines), path
        names = [line.split("=")[0] for line in lines if line[:2] == "--"]
        once = [name for name in names if name not in several]
        assert len(once) == len(set(once)), path.stem


def test_setups_begin_with_name_task_and_data():
    for path in SETUPS:
        name, task, data, comment = lines_of(path)[:4]
        assert name == f"--setup={path.stem}"
        assert task.startswith("--task=") and data.startswith("--data=")
        assert comment.startswith("#"), path.stem


# What the flags say.


def test_setups_and_losses_leave_each_other_alone():
    """So any two of them combine."""
    setup, method, *rest = read()
    for path in SETUPS:
        assert read(path)[1:] == (method, *rest), path.stem
    for path in LOSSES:
        found, own, *left = read(path)
        assert (found, left) == (setup, rest), path.stem
        assert own.method == path.stem


def test_setups_name_known_data_and_a_network():
    for path in SETUPS:
        setup = read(path)[0]
        assert setup.data in DATA[setup.task], path.stem
        dense = setup.task == "segmentation"
        nets = {"segmentation": catalogue.SEGMENTERS, "detection": DETECTORS}
        nets = nets.get(setup.task, catalogue.NETS)
        assert setup.net in nets, path.stem
        assert (setup.ignore_class is not None) == dense, path.stem


def test_setups_train_by_schedules_that_are_whole():
    for path in SETUPS:
        setup = read(path)[0]
        assert setup.learning_rate > 0
        steps = setup.decay_epochs
        assert (setup.schedule == "steps") == bool(steps), path.stem
        assert steps == sorted(set(steps))
        assert all(0 < step < setup.epochs for step in steps), path.stem
        assert setup.warmup_epochs < setup.epochs
        assert setup.schedule == "cosine" or not setup.warmup_epochs
        if setup.optimizer != "sgd":
            assert not setup.coupled_decay, path.stem
            assert setup.backbone_rate == 1.0, path.stem
        if setup.keep == "best":
            assert setup.validation > 0, path.stem


def test_margin_is_6_for_cifar10_and_10_elsewhere():
    for path in SETUPS:
        setup = read(path)[0]
        named = any(line.startswith("--margin=") for line in lines_of(path))
        margin = 6.0 if setup.data == "cifar10" else 10.0
        assert named and setup.margin == margin, path.stem


def test_losses_are_made_of_public_classes():
    for path in LOSSES:
        method = read(path)[1]
        if method.loss == "CrossEntropy":
            assert not method.loss_option
            continue
        assert "margin" not in method.loss_option
        options = dict(method.loss_option)
        if method.fidelity is not None:
            inner = getattr(keras_calib.losses, method.fidelity)
            options["fidelity"] = inner(
                **method.fidelity_option, from_logits=True
            )
        loss = getattr(keras_calib.losses, method.loss)(
            **options, from_logits=True
        )
        assert isinstance(loss, keras.losses.Loss)
        config = loss.get_config()
        for name, value in method.loss_option.items():
            assert _same(config[name], value), (path.stem, name)


def test_losses_with_a_margin_leave_the_sum_of_the_logits_alone():
    # A gradient that does not is not that of probabilities, and logits grow.
    released = {"acls_released"}  # its penalty is of logits, as published
    setup = read(RECIPES / "setups" / "cifar10_resnet50.flags")[0]
    setup = setup._replace(margin=2.0)
    logits = np.array([[4.0, 3.5, 1.0, 0.0], [0.0, 5.0, 2.0, 4.5]], "float32")
    sums = {}
    for path in LOSSES:
        method = read(path)[1]
        if losses.has_margin(method) and method.train_model is None:
            loss = losses.build_loss(method, setup)
            _, slope = value_and_grad(
                functools.partial(loss, np.array([0, 3])), logits
            )
            sums[path.stem] = np.abs(array(slope).sum(axis=-1)).max()
    assert len(sums) >= 6
    assert {name for name, most in sums.items() if most > 1e-6} == released


def test_models_are_made_of_public_classes():
    for path in LOSSES:
        method = read(path)[1]
        if method.train_model is None:
            assert not method.model_option
            continue
        kind = getattr(keras_calib.training, method.train_model)
        options = dict(method.model_option)
        if issubclass(kind, keras_calib.training.RecordingModel):
            options["num_samples"] = 4
        inputs = keras.Input((2,))
        model = kind(inputs, keras.layers.Dense(2)(inputs), **options)
        config = model.get_config()
        for name, value in method.model_option.items():
            found = config.get(name, getattr(model, name, None))
            assert _same(found, value), (path.stem, name)


def _same(first, second):
    """Equal, but for lists in place of tuples."""
    if isinstance(second, tuple | list):
        return len(first) == len(second) and all(map(_same, first, second))
    return first == second


def test_grids_are_of_arguments_that_a_loss_has():
    for path in SWEEPS:
        setup, _, _, grid = read(path)
        named = re.findall(r"([\w.]+)\.flags", comment(path))
        losses = [RECIPES / "losses" / f"{name}.flags" for name in named]
        assert grid and losses, path.stem
        for axis in grid:
            name, _, values = axis.partition("=")
            values = [ast.literal_eval(value) for value in values.split(",")]
            assert values == sorted(set(values))
            kind, _, option = name.partition(".")
            if not option:
                assert hasattr(setup, kind)
                continue
            assert kind == "loss_option"
            for method in (read(loss)[1] for loss in losses):
                for value in values:
                    options = {**method.loss_option, option: value}
                    made = getattr(keras_calib.losses, method.loss)
                    made(**options, from_logits=True)
