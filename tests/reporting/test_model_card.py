"""The model card: the numbers of the certificate, and readable metadata."""

import json

import pytest
from cases import BACKEND
from exported import trained
from selection_data import noisy, temperature

import keras_calib as kc

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)
GIVEN = {"name": 'A "model": #1', "intended_use": "Sorts pears from apples."}


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    path = tmp_path_factory.mktemp("card") / "m"
    selector = kc.SelectiveClassifier(calibrator=temperature())
    selector.fit(*noisy(), risk=0.1, delta=0.05)
    kc.export(trained(4)[0], path, selector=selector, certificate=True)
    return path


def test_the_card_has_the_numbers_of_the_certificate(certified):
    card = kc.reporting.model_card(certified, **GIVEN)
    facts = kc.exporting.check_certificate(certified).certificate
    assert facts["guarantee"]["statement"] in card
    assert facts["digest"] in card
    for part in ("threshold", "coverage", "risk", "num_samples"):
        assert f"| {facts['selection'][part]} |" in card
    assert "Sorts pears" in card
    assert "Evaluation" not in card
    for limit in ("no longer holds", "single prediction", "up to 0.05"):
        assert limit in card


def test_the_hub_reads_the_metadata(certified):
    hub = pytest.importorskip("huggingface_hub")
    card = kc.reporting.model_card(
        certified,
        **GIVEN,
        dataset="pears: 2026",
        evaluation={"ece": 0.012, "aurc": 0.004, "my score": 3},
        evaluation_dataset="test",
        license="apache-2.0",
        tags=["fruit", "calibration"],
    )
    data = hub.ModelCard(card, ignore_metadata_errors=False).data
    assert data.library_name == "keras"
    assert data.license == "apache-2.0"
    assert data.model_name == GIVEN["name"]
    assert data.tags.count("calibration") == 1
    assert "fruit" in data.tags
    found = {(x.dataset_name, x.metric_type): x for x in data.eval_results}
    assert all(isinstance(x, hub.EvalResult) for x in found.values())
    assert found["test", "ece"].metric_value == 0.012
    facts = kc.exporting.check_certificate(certified).certificate["selection"]
    share = found["pears: 2026", "coverage"].metric_value
    assert share == facts["coverage"]
    assert "| my score | 3 |" in card


@pytest.mark.parametrize(
    ("changed", "error", "told"),
    [
        ({"name": " "}, ValueError, "`name` must not be empty"),
        ({"intended_use": None}, TypeError, "`intended_use` must be a text"),
        ({"evaluation": {"ece": 0.1}}, ValueError, "`evaluation_dataset`"),
        (
            {"evaluation": {"ece": "low"}, "evaluation_dataset": "t"},
            TypeError,
            "`ece` must be a number",
        ),
        ({"tags": "fruit"}, TypeError, "`tags` must be a list"),
    ],
)
def test_a_card_without_its_facts_is_refused(certified, changed, error, told):
    with pytest.raises(error, match=told):
        kc.reporting.model_card(certified, **{**GIVEN, **changed})


def test_no_card_is_made_of_a_changed_certificate(certified, tmp_path):
    file = tmp_path / "m.onnx.certificate.json"
    source = certified / "assets.extra" / "certificate.json"
    facts = json.loads(source.read_text())
    facts["guarantee"]["risk"] = 0.01
    file.write_text(json.dumps(facts, indent=2) + "\n")
    with pytest.raises(ValueError, match="must be unchanged"):
        kc.reporting.model_card(tmp_path / "m.onnx", **GIVEN)
