"""What models refuse before they train wrongly."""

import keras
import numpy as np
import pytest
from cases import BACKEND
from keras import ops
from small_trainings import COUNT, EAGER, MODELS, Batches, data_of, dense, eager

import keras_calib as kc

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
REMEMBER = [name for name, (_, a, _) in MODELS.items() if "num_samples" in a]


def test_labels_without_an_index_or_with_class_weights_do_not_train():
    for name in REMEMBER:
        x, y, labels, _ = data_of(name, COUNT)
        model = eager(name)
        wrong = {"label": labels, "id": y["index"]}
        for given, options, match in (
            (labels, {}, 'must be {"label": labels'),
            (wrong, {}, "index"),
            (y, {"class_weight": {0: 1.0, 1: 2.0}}, "as `sample_weight`"),
        ):
            with pytest.raises(ValueError, match=match):
                model.fit(x, given, verbose=0, **options)


def test_class_weights_with_an_index_are_refused_by_every_model():
    x, _, labels, _ = data_of("sam", 32)
    model = eager("sam")
    batches = kc.data.EpochBatches(x, labels)
    with pytest.raises(ValueError, match="as `sample_weight`"):
        model.fit(batches, class_weight={0: 2.0}, verbose=0)
    losses = [
        eager("sam").fit(x, labels, verbose=0, shuffle=False, **option)
        for option in ({}, {"class_weight": {0: 9.0}})
    ]
    losses = [fitted.history["loss"][0] for fitted in losses]
    assert abs(losses[0] - losses[1]) > 0.1


def test_class_weights_are_refused_step_by_step_and_of_any_data():
    x, y, labels, _ = data_of("sam", 32)
    with pytest.raises(ValueError, match="as `sample_weight`"):
        eager("sam").train_on_batch(x, y, class_weight={0: 2.0})
    with pytest.raises(ValueError, match="as `sample_weight`"):
        eager("sam").fit(Batches(y=y), class_weight={0: 2.0}, verbose=0)
    plain = eager("sam").train_on_batch(x, labels)
    weighed = eager("sam").train_on_batch(x, labels, class_weight={0: 9.0})
    assert abs(plain[0] - weighed[0]) > 0.1


def test_models_with_their_own_loss_take_no_other():
    x, y, labels, _ = data_of("sam", 32)
    for cls in (kc.AdaptiveFocalModel, kc.ScheduledFocalModel):
        model = dense(cls, from_logits=True)
        model.compile("sgd", loss=CROSS_ENTROPY, **EAGER)
        with pytest.raises(ValueError, match="without `loss`"):
            model.fit(x, labels, validation_data=(x, labels), verbose=0)


def test_models_need_to_know_what_outputs_are():
    x, y, _, _ = data_of("crl", 32)
    model = dense(kc.CorrectnessRankingModel, num_samples=COUNT)
    loss = lambda labels, logits: ops.sum(logits, -1)  # noqa: E731
    model.compile("sgd", loss=loss, **EAGER)
    with pytest.raises(ValueError, match="`from_logits` must be True or"):
        model.fit(x, y, verbose=0)


def test_pixels_have_no_record():
    inputs = keras.Input((2, 2, 3))
    outputs = keras.layers.Dense(3)(inputs)
    model = kc.CorrectnessRankingModel(inputs, outputs, num_samples=8)
    model.compile("sgd", loss=CROSS_ENTROPY, **EAGER)
    y = {"label": np.zeros((8, 2, 2), int), "index": np.arange(8)}
    with pytest.raises(ValueError, match="not of pixels"):
        model.fit(np.zeros((8, 2, 2, 3)), y, verbose=0)


OUT_OF_RANGE = [
    (kc.CorrectnessRankingModel, {"num_samples": 0}, "`num_samples`"),
    (
        kc.CorrectnessRankingModel,
        {"num_samples": 4, "strength": -1.0},
        "`strength` must be >= 0",
    ),
    (
        kc.CorrectnessRankingModel,
        {"num_samples": 4, "score": "energy"},
        "`score` must be one of",
    ),
    (kc.SharpnessAwareModel, {"rho": 0.0}, "`rho` must be > 0"),
    (kc.AdaptiveFocalModel, {"num_bins": 0}, "`num_bins` must be >= 1"),
    (
        kc.AdaptiveFocalModel,
        {"limits": (2.0, -2.0)},
        "`limits` must be > 2.0",
    ),
    (
        kc.AdaptiveFocalModel,
        {"limits": (1.0, 2.0, 3.0)},
        "`limits` must be two",
    ),
    (
        kc.ScheduledFocalModel,
        {"schedule": ((5, 1.0),)},
        "`schedule` must be rows",
    ),
    (
        kc.ScheduledFocalModel,
        {"schedule": ((0, 5.0), (1.5, 1.0))},
        "`schedule` must be rows",
    ),
    (kc.CaPEModel, {"num_samples": 4, "every": 0}, "`every` must be >= 1"),
    (kc.CaPEModel, {"num_samples": 4, "event": "top"}, "`event` must be"),
    (
        kc.ConfidencePruningModel,
        {"num_samples": 4, "fraction": 1.0},
        "`fraction` must be < 1",
    ),
    (
        kc.ConfidencePruningModel,
        {"num_samples": 4, "smoothing": 0.0},
        "`smoothing` must be > 0",
    ),
]


def test_arguments_out_of_range_are_named():
    for cls, arguments, message in OUT_OF_RANGE:
        with pytest.raises(ValueError, match=message):
            dense(cls, **arguments)


def test_a_condition_needs_a_loss_that_takes_it():
    x, y, _, _ = data_of("crl", 32)
    model = dense(
        kc.CorrectnessRankingModel, 2, num_samples=32, role="condition"
    )
    assert model.condition == "ranking"
    y["label"] = np.eye(2)[y["label"] % 2]
    match = 'needs `ACLS\\(condition="rank'
    for loss in (
        keras.losses.CategoricalCrossentropy(),
        kc.ACLS(from_logits=True),
    ):
        model.compile("sgd", loss=loss, **EAGER)
        with pytest.raises(ValueError, match=match):
            model.fit(x, y, verbose=0)
        with pytest.raises(ValueError, match=match):
            model.evaluate(x, y["label"], verbose=0)


def test_models_that_remember_do_not_combine():
    class Two(kc.ConfidencePruningModel, kc.CorrectnessRankingModel):
        pass

    with pytest.raises(TypeError, match="one base class that records samples"):
        dense(Two, num_samples=COUNT)

    class Own(kc.CorrectnessRankingModel):
        def recorded_loss(self, *args):
            return 2.0 * super().recorded_loss(*args)

    assert dense(Own, num_samples=COUNT).num_samples == COUNT


def test_models_with_a_loss_of_one_output_take_no_two():
    for name in ("crl", "pruning", "adafocal"):
        cls, arguments, compiled = MODELS[name]
        inputs = keras.Input((6,))
        outputs = [keras.layers.Dense(3)(inputs) for _ in range(2)]
        model = cls(inputs, outputs, **arguments)
        model.compile("sgd", **compiled, **EAGER)
        x, y, labels, _ = data_of(name, COUNT)
        with pytest.raises(ValueError, match="must have one output"):
            model.fit(x, y, validation_data=(x, labels), verbose=0)


def test_data_in_the_order_of_the_epoch_are_read_whole():
    x, _, labels, _ = data_of("crl", COUNT)
    batches = kc.data.EpochBatches(x, labels)
    with pytest.raises(ValueError, match="`steps_per_epoch` must be left out"):
        eager("crl").fit(batches, steps_per_epoch=2, verbose=0)
    with pytest.raises(ValueError, match="`shuffle` must be left out"):
        eager("crl").fit(batches, shuffle=True, verbose=0)


def test_a_fidelity_that_needs_a_factor_is_refused():
    ranking = kc.ACLS(condition="ranking", from_logits=True)
    with pytest.raises(TypeError, match="plain labels"):
        kc.DCA(fidelity=ranking, from_logits=True)


def test_acls_by_ranking_wants_its_factor():
    loss = kc.ACLS(condition="ranking", from_logits=True)
    with pytest.raises(ValueError, match="a factor per sample"):
        loss(np.array([0, 1]), np.zeros((2, 3)))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="strategies of TensorFlow")
def test_batches_that_replicas_cannot_share_are_refused(monkeypatch):
    """Keras fails without a reason, also in an evaluation."""

    class Strategy:
        num_replicas_in_sync = 2

    model = eager("sam")
    monkeypatch.setattr(model, "_distribute_strategy", Strategy())
    x, _, labels, _ = data_of("sam", 32)
    uneven = x[:31], labels[:31]
    for given, options in (
        (uneven, {"validation_split": 0.5}),
        ((x, labels), {"validation_data": uneven}),
    ):
        with pytest.raises(ValueError, match="the first batch must divide ev"):
            model.fit(*given, verbose=0, **options)
    with pytest.raises(ValueError, match="batch_size=31, devices=2"):
        model.evaluate(*uneven, verbose=0)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="strategies of TensorFlow")
def test_several_hosts_are_refused_on_tensorflow(monkeypatch):
    import tensorflow as tf

    class Strategy:
        num_replicas_in_sync = 1

        class cluster_resolver:
            @staticmethod
            def cluster_spec():
                return tf.train.ClusterSpec({"worker": ["a:1", "b:1"]})

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", Strategy)
    model = eager("sam")
    monkeypatch.setattr(model, "_distribute_strategy", Strategy())
    x, _, labels, _ = data_of("sam", 32)
    with pytest.raises(RuntimeError, match=r"with `keras\.distribution`"):
        model.fit(x, labels, verbose=0)
