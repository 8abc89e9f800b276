"""Optimizers and schedules are those of the papers."""

import types

import keras
import numpy as np
import pytest
from absl import app
from config import optimizers, strategies


def setup_of(**fields):
    """A set-up with the fields that schedules and optimizers read."""
    plain = {
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.9,
        "nesterov": False,
        "coupled_decay": 0.0,
        "weight_decay": 0.0,
        "backbone_rate": 1.0,
        "clip_norm": None,
        "schedule": "constant",
        "epochs": 10,
        "decay_epochs": [],
        "decay_factor": 0.1,
        "warmup_epochs": 0,
        "power": 0.9,
        "time_decay": 0.0,
    }
    return types.SimpleNamespace(**{**plain, **fields})


@pytest.mark.parametrize("nesterov", [False, True])
def test_coupled_decay_is_that_of_torch(nesterov):
    setup = setup_of(coupled_decay=0.05, nesterov=nesterov)
    optimizer = optimizers.build_optimizer(setup, 1)
    weight = keras.Variable([1.0, -2.0])
    expected, velocity = np.array([1.0, -2.0]), np.zeros(2)
    optimizer.build([weight])
    for step in range(4):
        gradient = np.array([0.3, step - 1.0])
        optimizer.apply([keras.ops.convert_to_tensor(gradient, "float32")])
        # torch.optim.SGD's documentation.
        decayed = gradient + 0.05 * expected
        velocity = 0.9 * velocity + decayed
        move = decayed + 0.9 * velocity if nesterov else velocity
        expected = expected - 0.1 * move
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5)


def test_backbones_learn_at_a_rate_of_their_own():
    setup = setup_of(backbone_rate=0.1, momentum=0.0)
    optimizer = optimizers.build_optimizer(setup, 1)
    inputs = keras.Input((2,))
    x = keras.layers.Dense(1, use_bias=False, name="backbone_a")(inputs)
    outputs = keras.layers.Dense(1, use_bias=False)(x)
    model = keras.Model(inputs, outputs)
    optimizer.build(model.trainable_variables)
    before = [v.numpy() for v in model.trainable_variables]
    ones = [keras.ops.ones_like(v) for v in model.trainable_variables]
    optimizer.apply(ones)
    moves = [
        np.unique(np.round(old - new.numpy(), 6))
        for old, new in zip(before, model.trainable_variables, strict=True)
    ]
    np.testing.assert_allclose(np.ravel(moves), [0.01, 0.1], rtol=1e-4)


def test_schedules_are_those_of_the_papers():
    learning_rate = optimizers.learning_rate

    def rates(steps, per_epoch=10, **fields):
        schedule = learning_rate(setup_of(**fields), per_epoch)
        return [float(schedule(step)) for step in steps]

    steps = rates([0, 29, 30, 69, 70], schedule="steps", decay_epochs=[3, 7])
    np.testing.assert_allclose(steps, [0.1, 0.1, 0.01, 0.01, 0.001], rtol=1e-5)
    poly = rates([0, 50, 99], schedule="poly")
    expected = [0.1 * (1 - step / 100) ** 0.9 for step in (0, 50, 99)]
    np.testing.assert_allclose(poly, expected, rtol=1e-4)
    cosine = rates([0, 50, 100], schedule="cosine")
    np.testing.assert_allclose(cosine, [0.1, 0.05, 0.0], atol=1e-6)
    warm = rates([0, 10, 20, 60], schedule="cosine", warmup_epochs=2)
    np.testing.assert_allclose(warm, [0.0, 0.05, 0.1, 0.05], atol=1e-6)
    slower = rates([0, 50], time_decay=0.02)
    np.testing.assert_allclose(slower, [0.1, 0.05], rtol=1e-6)
    assert learning_rate(setup_of(), 10) == 0.1
    with pytest.raises(ValueError, match="`--warmup_epochs` must be 0"):
        learning_rate(setup_of(warmup_epochs=1), 10)


def test_options_of_sgd_are_refused_elsewhere():
    build = optimizers.build_optimizer
    assert isinstance(
        build(setup_of(optimizer="adam"), 1), keras.optimizers.Adam
    )
    adamw = build(setup_of(optimizer="adamw", weight_decay=0.3), 1)
    assert adamw.weight_decay == 0.3
    with pytest.raises(ValueError, match="`--weight_decay` must be 0"):
        build(setup_of(weight_decay=0.3), 1)
    with pytest.raises(ValueError, match="`--coupled_decay` must be 0"):
        build(setup_of(optimizer="adam", coupled_decay=0.1), 1)


def test_schedules_and_optimizers_are_saved():
    setup = setup_of(schedule="poly", time_decay=0.1, coupled_decay=0.2)
    optimizer = optimizers.build_optimizer(setup, 10)
    config = keras.optimizers.serialize(optimizer)
    copy = keras.optimizers.deserialize(config)
    assert copy.coupled_decay == 0.2
    rate = copy._learning_rate
    np.testing.assert_allclose(rate(10), 0.1 * 0.9**0.9 / 2, rtol=1e-5)


@pytest.mark.parametrize(
    "size, count, logical, advice",
    [
        (12, 8, None, "=8 or --batch_size=16, or train on 6 with CUDA_VISI"),
        (12, 8, 8, "or train on 6 with --logical_devices=6"),
        (5, 8, None, "set --batch_size=8, or train on 5 with CUDA_VISIBLE_DE"),
        (7, 4, 4, "or train on one with --strategy=none"),
    ],
)
def test_a_batch_that_devices_cannot_share_is_refused(
    size, count, logical, advice, monkeypatch
):
    devices = types.SimpleNamespace(num_replicas_in_sync=count)
    monkeypatch.setattr(strategies, "mirrored", lambda logical: devices)
    strategies.check_batch_size(2 * count, "mirrored", logical)
    strategies.check_batch_size(size, "none")
    with pytest.raises(app.UsageError, match="`--batch_size` must") as error:
        strategies.check_batch_size(size, "mirrored", logical)
    assert advice in str(error.value)
    with pytest.raises(app.UsageError, match="with --strategy=mirrored"):
        strategies.check_batch_size(size, "none", 2)
