"""What changes between epochs: gammas, targets, pruned samples."""

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from small_trainings import COUNT, EAGER, Batches, data_of, dense, eager

import keras_calib as kc

ONE_STEP = {"batch_size": COUNT, "verbose": 0}
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def test_a_schedule_sets_the_gamma_of_each_epoch():
    seen = []
    model = dense(
        kc.ScheduledFocalModel,
        schedule=((0, 5.0), (1, 3.0), (3, 1.0)),
        from_logits=True,
    )
    model.compile("sgd", **EAGER)
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(float(model.gammas[0]))
    )
    x, _, labels, _ = data_of("sam", 32)
    model.fit(x, labels, epochs=4, **ONE_STEP, callbacks=look)
    assert seen == [5.0, 3.0, 3.0, 1.0]
    value = model.evaluate(x, labels, verbose=0)
    loss = kc.FocalLoss(gamma=1.0, from_logits=True)
    expected = float(loss(labels, model.predict(x, verbose=0)))
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_gammas_are_those_of_the_validation_data_after_each_epoch():
    x, _, labels, _ = data_of("adafocal", COUNT)
    model = dense(kc.AdaptiveFocalModel, num_bins=5, from_logits=True)
    model.compile("sgd", **EAGER)
    model.fit(x, labels, validation_data=(x, labels), **ONE_STEP)
    twin = dense(kc.AdaptiveFocalModel, num_bins=5, from_logits=True)
    for v, w in zip(
        twin.trainable_variables, model.trainable_variables, strict=True
    ):
        v.assign(w)
    sums = twin.update_gammas((x, labels), batch_size=7)
    np.testing.assert_allclose(array(model.gammas), array(twin.gammas), 1e-5)
    np.testing.assert_allclose(array(model.edges), array(twin.edges), 1e-5)
    # The least confidence is in no bin.
    assert sums.weight.sum() == COUNT - 1
    assert np.abs(array(model.gammas) - 1.0).max() > 1e-3


def test_ignored_labels_of_validation_data_set_no_gamma():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4, 5, 3)).astype("float32")
    labels = rng.integers(3, size=(4, 5))
    labels[0] = labels[:, 0] = 255
    inputs = keras.Input((5, 3))
    models = [
        kc.AdaptiveFocalModel(
            inputs,
            keras.layers.Rescaling(1.0)(inputs),
            num_bins=3,
            from_logits=True,
            ignore_class=255,
        )
        for _ in range(2)
    ]
    kept = labels != 255
    alone = keras.Input((3,))
    models[1] = kc.AdaptiveFocalModel(
        alone, keras.layers.Rescaling(1.0)(alone), num_bins=3, from_logits=True
    )
    models[0].update_gammas((logits, labels), batch_size=1)
    models[1].update_gammas((logits[kept], labels[kept]))
    assert kept.sum() == 12
    np.testing.assert_array_equal(
        array(models[0].gammas), array(models[1].gammas)
    )


def test_adafocal_takes_validation_data_as_keras_does():
    x, _, labels, _ = data_of("adafocal", 32)
    gammas = []
    for data in ((x, labels), [x, labels], Batches(2)):
        model = eager("adafocal")
        model.fit(x, labels, validation_data=data, verbose=0, shuffle=False)
        gammas.append(array(model.gammas))
    assert np.any(gammas[0] != 1.0)
    np.testing.assert_array_equal(gammas[0], gammas[1])
    np.testing.assert_array_equal(gammas[0], gammas[2])


def test_adafocal_needs_validation_data_without_weights():
    x, y, labels, weight = data_of("adafocal", 32)
    with pytest.raises(ValueError, match="`validation_data` must be given"):
        eager("adafocal").fit(x, labels, verbose=0)
    with pytest.raises(ValueError, match="no sample weights"):
        eager("adafocal").update_gammas((x, labels, weight))
    with pytest.raises(ValueError, match="have a sample"):
        eager("adafocal").update_gammas([])
    for data in ((x, labels, weight), [x, labels, weight], Batches(3)):
        model = eager("adafocal")
        with pytest.raises(ValueError, match="no sample weights"):
            model.fit(x, labels, validation_data=data, verbose=0)
        assert int(model.optimizer.iterations) == 0
    with pytest.raises(ValueError, match="again and again"):
        eager("adafocal").fit(
            x, labels, validation_data=iter([(x, labels)]), verbose=0
        )


def test_cape_targets_are_taken_in_the_epochs_that_calibrate():
    x, y, labels, _ = data_of("cape", COUNT)
    seen = []
    model = dense(kc.CaPEModel, 1, num_samples=COUNT, every=2)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss=loss, **EAGER)

    def look(epoch, logs):
        seen.append((float(model.calibrates), array(model.targets).copy()))

    model.fit(
        x,
        y,
        batch_size=48,
        epochs=3,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=look)],
    )
    assert [flag for flag, _ in seen] == [1.0, 0.0, 1.0]
    np.testing.assert_array_equal(seen[0][1], seen[1][1])
    assert np.abs(seen[2][1] - seen[1][1]).max() > 0.01
    # Other samples than those trained on: a target for these alone.
    model = dense(kc.CaPEModel, 1, num_samples=COUNT, every=2)
    model.compile("sgd", loss=loss, **EAGER)
    some = {key: values[:40] for key, values in y.items()}
    model.fit(x, y, epochs=1, verbose=0, calibration_data=(x[:40], some))
    targets = array(model.targets)
    assert (targets[:40] >= 0).all()
    assert (targets[40:] == -1).all()


def test_cape_can_begin_late():
    x, y, _, _ = data_of("cape", COUNT)
    model = dense(kc.CaPEModel, 1, num_samples=COUNT, every=2, first_epoch=1)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss, **EAGER)
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(float(model.calibrates))
    )
    model.fit(x, y, epochs=4, **ONE_STEP, callbacks=[look])
    assert seen == [0.0, 1.0, 0.0, 1.0]


def test_cape_needs_two_classes_and_an_index():
    x, y, labels, _ = data_of("cape", COUNT)
    model = dense(kc.CaPEModel, num_samples=COUNT)
    model.compile("sgd", loss=CROSS_ENTROPY, **EAGER)
    with pytest.raises(ValueError, match="two classes"):
        model.fit(x, y, verbose=0)
    with pytest.raises(ValueError, match='must be {"label"'):
        eager("cape").update_targets((x, labels))


def test_cape_of_ten_classes_trains_on_the_class_that_was_predicted():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(COUNT, 6)), rng.integers(10, size=COUNT)
    y = {"label": labels, "index": rng.permutation(COUNT)}
    options = {"num_samples": COUNT, "event": "predicted", "every": 2}
    model = dense(kc.CaPEModel, 10, **options)
    model.compile(keras.optimizers.SGD(5.0), loss=CROSS_ENTROPY, **EAGER)
    before = array(model(x))
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(
            [array(v).copy() for v in (model.targets, model.classes)]
        )
    )
    # One step an epoch: the first has the loss of the first predictions.
    options = {"batch_size": COUNT, "shuffle": False, "verbose": 0}
    fitted = model.fit(x, y, epochs=3, callbacks=[look], **options)
    predicted, index = before.argmax(-1), y["index"]
    targets = kc.losses.cape_targets(
        labels, before, event="predicted", from_logits=True
    )
    (first, classes), second, third = seen
    np.testing.assert_array_equal(classes[index], predicted)
    np.testing.assert_allclose(first[index], targets, atol=1e-6)
    loss = array(kc.losses.cape_loss(targets, before, classes=predicted))
    expected = loss.mean()
    np.testing.assert_allclose(fitted.history["loss"][0], expected, rtol=1e-5)
    np.testing.assert_array_equal(second, seen[0])
    assert (third[1] != classes).any()


def test_cape_takes_no_targets_from_what_is_split_off():
    x, y, _, _ = data_of("cape", COUNT)
    with pytest.raises(ValueError, match="with `validation_split`"):
        eager("cape").fit(x, y, validation_split=0.5, verbose=0)


def test_cape_sets_targets_of_all_and_needs_to_read_again():
    x, y, _, _ = data_of("cape", COUNT)
    model = eager("cape")
    model.fit(x, y, batch_size=32, steps_per_epoch=1, verbose=0)
    assert np.all(array(model.targets) >= 0)
    batches = [(x[i : i + 32], _part(y, i)) for i in range(0, COUNT, 32)]
    with pytest.raises(ValueError, match="again and again"):
        eager("cape").fit((b for b in batches), verbose=0)
    with pytest.raises(ValueError, match="again and again"):
        eager("cape").fit(x, y, calibration_data=iter(batches), verbose=0)
    model = eager("cape")
    model.fit(
        (batch for batch in batches),
        steps_per_epoch=3,
        calibration_data=(x, y),
        shuffle=False,
        verbose=0,
    )
    assert np.all(array(model.targets) >= 0)


def _part(y, start):
    return {key: value[start : start + 32] for key, value in y.items()}


@pytest.mark.skipif(BACKEND != "tensorflow", reason="data of TensorFlow")
def test_cape_reads_as_many_batches_of_endless_data_as_an_epoch_has():
    import tensorflow as tf

    x, y, _, _ = data_of("cape", COUNT)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    for given, count in ((data, COUNT), (data.repeat(), 64)):
        model = eager("cape")
        model.fit(given, steps_per_epoch=2, verbose=0)
        assert np.sum(array(model.targets) >= 0) == count


def test_pruning_drops_the_least_confident_and_trains_as_without_them():
    x, y, labels, _ = data_of("pruning", COUNT)
    model = dense(
        kc.ConfidencePruningModel, num_samples=COUNT, fraction=0.25, every=2
    )
    model.compile(keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY, **EAGER)
    options = {"batch_size": COUNT, "shuffle": False, "verbose": 0}
    model.fit(x, y, epochs=1, **options)
    assert model.kept().all()
    model.fit(x, y, initial_epoch=1, epochs=2, **options)
    kept = model.kept()
    assert kept.sum() == 72
    confidence = array(model.confidence)
    assert confidence[~kept].max() <= confidence[kept].min()
    assert model.prune() == 54
    assert model.prune() == 48, "half of all stay"
    kept = model.kept()
    plain = dense(keras.Model)
    plain.set_weights([array(w) for w in model.trainable_variables])
    plain.compile(keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY, **EAGER)
    model.fit(x, y, epochs=1, **options)
    plain.fit(x[kept], labels[kept], epochs=1, **options)
    for v, w in zip(
        model.trainable_variables, plain.trainable_variables, strict=True
    ):
        np.testing.assert_allclose(array(v), array(w), atol=1e-6)
