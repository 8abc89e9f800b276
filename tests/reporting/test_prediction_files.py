"""Files of predictions in every format, and what is wrong with some."""

import numpy as np
import pytest
from noisy_predictions import noisy_predictions
from noisy_predictions import softmax
from report_pages import write_file

from keras_calib.reporting.prediction_files import PredictionFile
from keras_calib.reporting.prediction_files import Rows


@pytest.mark.parametrize(
    "name",
    ["a.npz", "a.csv", "a.parquet", "lists.parquet"],
)
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_files_of_predictions_are_read_alike(tmp_path, name, kind):
    labels, logits = noisy_predictions(40, 12)
    values = logits if kind == "logits" else softmax(logits)
    file = PredictionFile(write_file(tmp_path / name, labels, **{kind: values}))
    assert file.from_logits == (kind == "logits")
    assert file.num_rows in (40, None)
    parts = list(file.batches(16))
    assert [len(part.labels) for part in parts] == [16, 16, 8]
    for rows in (
        file.read(),
        Rows(
            *map(
                np.concatenate, zip(*[part[:2] for part in parts], strict=True)
            ),
            None,
        ),
    ):
        np.testing.assert_array_equal(rows.labels, labels)
        np.testing.assert_allclose(rows.outputs, values, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("gap.csv", "label,prob_0,prob_2\n0,0.5,0.5\n", "`prob_0` to `prob_1`"),
        ("text.csv", "label,prob_0,prob_1\ncat,0.5,0.5\n", "`label` must hold"),
        ("none.csv", "label,prob_0,prob_1\n1,,0.5\n", "`prob_0` must hold"),
        ("odd.csv", "label,prob_0,prob_1\n1,a,0.5\n", "readable .csv"),
        ("both.csv", "label,prob_0,logit_0\n1,0,1\n", "must have `label` or"),
        ("bare.csv", "class,prob_0\n1,1\n", "must have `label` or"),
        ("empty.csv", "label,prob_0,prob_1\n", "must have samples"),
        ("broken.parquet", "PAR1 no", "readable .parquet"),
        ("broken.npz", "PK no", "plain arrays"),
        ("other.pkl", "", "must end in"),
    ],
)
def test_bad_files_are_named_with_what_is_wrong(tmp_path, name, text, match):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=match):
        PredictionFile(tmp_path / name).read()


def test_bad_arrays_in_files_are_refused(tmp_path):
    labels, logits = noisy_predictions(10)
    # Reading this would run what it holds.
    pickled = np.array([{"a": 1}] * 10, dtype=object)
    path = write_file(tmp_path / "pickled.npz", labels, logits=pickled)
    with pytest.raises(ValueError, match="plain arrays"):
        PredictionFile(path)
    path = write_file(tmp_path / "a.npz", labels, logits=logits, probs=logits)
    with pytest.raises(ValueError, match="either `logits` or `probs`"):
        PredictionFile(path)
    path = write_file(tmp_path / "b.npz", labels[:9], logits=logits)
    with pytest.raises(ValueError, match="one length"):
        PredictionFile(path)
    with pytest.raises(ValueError, match="No such file"):
        PredictionFile(tmp_path / "absent.npz")
