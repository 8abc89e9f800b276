"""Tasks of KerasHub by tokenizer: odd texts, groups and certificates."""

import hub_tasks
import hub_texts
import numpy as np
import pytest
from cases import BACKEND
from exported import answers

import keras_calib as kc
from keras_calib.predictions.batches import predict_batches

pytestmark = [
    pytest.mark.skipif(
        BACKEND != "tensorflow", reason="export needs TensorFlow"
    ),
    pytest.mark.slow,
    hub_tasks.NEEDS_HUB,
]
GROUPS = np.array(["eu", "us"])


@pytest.fixture(
    scope="module",
    params=[hub_texts.byte_pairs, hub_texts.sentence_pieces],
    ids=lambda make: make.__name__,
)
def made(request, tmp_path_factory):
    """A task, its outputs, a selector by group and the certified file."""
    task = request.param()
    outputs = task.predict(hub_texts.TEXTS, verbose=0)
    labels = np.tile(outputs, (20, 1)).argmax(-1)
    labels[::7] = 1 - labels[::7]
    selector = kc.SelectiveClassifier().fit(
        labels,
        np.tile(outputs, (20, 1)),
        risk=0.3,
        delta=0.1,
        groups=np.resize(GROUPS, len(labels)),
    )
    path = tmp_path_factory.mktemp("hub") / request.param.__name__
    kc.export(task, path, selector=selector, certificate=True, from_logits=True)
    return task, outputs, selector, path


def test_odd_texts_are_read_in_one_way_everywhere(made):
    task, outputs, selector, path = made
    # Few of them are alike for the network.
    assert len(np.unique(outputs.round(3), axis=0)) > 12
    data = hub_texts.TEXTS, np.zeros(len(outputs))
    found = [x.outputs for x in predict_batches(task, data, batch_size=8)]
    np.testing.assert_allclose(np.concatenate(found), outputs, atol=1e-5)
    group = np.resize([0, 1], len(outputs)).astype("int32")
    found = answers(path, text=hub_texts.TEXTS, group=group)
    np.testing.assert_allclose(found["logits"], outputs, atol=1e-4)
    wanted = selector(outputs, groups=GROUPS[group])
    np.testing.assert_array_equal(found["accept"], wanted["accept"])


def test_a_certificate_of_a_task_holds_until_a_file_changes(made):
    *_, selector, path = made
    records = kc.exporting.save_records(selector, path.with_suffix(".npz"))
    with np.load(records) as data:
        columns = data["score"], data["correct"]
        found = kc.exporting.check_certificate(
            path, *columns, groups=data["group"]
        )
    assert found.holds, found.differences
    # Vocabularies are files of the model too.
    with (path / "fingerprint.pb").open("ab") as file:
        file.write(b"0")
    assert not kc.exporting.check_certificate(path).holds
