"""The report says what the metrics say, and shows no more than it was given."""

import base64
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import keras
import numpy as np
import pytest
from noisy_predictions import noisy_predictions
from noisy_predictions import softmax

import keras_calib as kc
from keras_calib.formulas.intervals import binomial_upper_bound
from keras_calib.reporting.command_line import main
from keras_calib.reporting.given_files import check_apart
from keras_calib.reporting.given_files import row_keys
from keras_calib.reporting.prediction_files import Rows
from keras_calib.reporting.prediction_files import open_predictions


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of scripts."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self._silent = [], "", False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._silent = tag in ("script", "style")

    def handle_endtag(self, tag):
        self._silent = False

    def handle_data(self, data):
        if not self._silent:
            self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def slider(page):
    boxes = [a for a in page.all("div") if a.get("class") == "slider"]
    return [json.loads(box["data-steps"]) for box in boxes]


@pytest.fixture(scope="module")
def made():
    labels, logits = noisy_predictions()
    return kc.report_of_predictions(labels, logits, from_logits=True, verbose=0)


@pytest.mark.portable
def test_report_has_the_values_of_the_exact_functions(made):
    labels, logits = noisy_predictions()
    found = made.results["model"]
    metrics = found["metrics"]
    exact = {
        "ece": kc.ece(labels, logits, from_logits=True),
        "nll": kc.nll(labels, logits, from_logits=True),
        "accuracy": np.mean(logits.argmax(-1) == labels),
    }
    for name, value in exact.items():
        assert abs(metrics[name]["value"] - value) < 1e-5, name
        assert metrics[name]["low"] <= value <= metrics[name]["high"]
    streamed = kc.AURC(from_logits=True)
    streamed.update_state(labels, logits)
    assert abs(metrics["aurc"]["value"] - float(streamed.result())) < 1e-6
    confidence = softmax(logits.astype("float64")).max(-1)
    gaps = confidence - (logits.argmax(-1) == labels)
    gap = found["overconfidence"]
    assert abs(gap["value"] - gaps.mean()) < 1e-6
    error = 1.96 * gaps.std() / np.sqrt(len(gaps))
    assert abs(gap["low"] - (gaps.mean() - error)) < 0.1 * error
    assert found["num_samples"] == len(labels)
    text = Page(made.html).text
    assert f"{metrics['ece']['value']:.4f}" in text
    assert f"{metrics['aurc']['value']:.4f}" in text


@pytest.mark.parametrize(
    ("scale", "headline"),
    [
        (3.0, "Overconfident"),
        (0.4, "Underconfident"),
        (1.0, "Neither over- nor underconfident on average"),
    ],
)
def test_verdict_names_the_side(scale, headline):
    labels, logits = noisy_predictions(2000, scale=scale)
    made = kc.report_of_predictions(labels, logits, from_logits=True, verbose=0)
    assert made.results["model"]["verdict"]["headline"] == headline
    assert headline in Page(made.html).text


@pytest.mark.portable
def test_few_errors_give_no_verdict_and_no_infinite_number():
    for n in (1, 3, 100):
        logits = np.tile(np.array([[6.0, 0.0]], "float32"), (n, 1))
        made = kc.report_of_predictions(
            np.zeros(n, int), logits, from_logits=True, verbose=0
        )
        found = made.results["model"]
        assert found["verdict"]["kind"] == "few"
        assert found["verdict"]["headline"] == "Too few errors to say"
        assert 'class="verdict few"' in made.html
        text = Page(made.html).text
        assert "Use more data." in text
        assert not re.search(r"\b(inf|nan)\b", text)


@pytest.mark.portable
def test_calibrated_column_is_of_the_calibrator():
    labels, logits = noisy_predictions()
    calibrator = kc.TemperatureScaling().fit(*noisy_predictions(seed=1))
    made = kc.report_of_predictions(
        labels, logits, from_logits=True, calibrator=calibrator, verbose=0
    )
    found = made.results["model"]
    after = kc.ece(labels, np.asarray(calibrator(logits)), from_logits=True)
    assert abs(found["calibrated_metrics"]["ece"]["value"] - after) < 1e-5
    assert after < found["metrics"]["ece"]["value"]
    page = Page(made.html)
    assert "After calibration" in page.text
    assert f"temperature {float(calibrator.temperature):.4g}" in page.text
    # Of probabilities too, whose logarithms are logits.
    again = kc.report_of_predictions(
        labels, softmax(logits), calibrator=calibrator, verbose=0
    )
    other = again.results["model"]["calibrated_metrics"]["ece"]["value"]
    assert abs(other - after) < 1e-4


@pytest.mark.portable
def test_selector_is_judged_on_the_data():
    labels, logits = noisy_predictions(3000)
    held_out = noisy_predictions(3000, seed=1)
    selector = kc.SelectiveClassifier().fit(*held_out, risk=0.2, delta=0.05)
    made = kc.report_of_predictions(
        labels, logits, from_logits=True, selector=selector, verbose=0
    )
    accept = np.asarray(selector(logits)["accept"])
    wrong = logits.argmax(-1) != labels
    found = made.results["model"]["selection"]
    assert abs(found["coverage"] - accept.mean()) < 1e-12
    assert abs(found["risk"]["value"] - wrong[accept].mean()) < 1e-12
    low, high = kc.clopper_pearson(wrong[accept].sum(), accept.sum())
    np.testing.assert_allclose(
        [found["risk"]["low"], found["risk"]["high"]], [low, high], rtol=1e-9
    )
    text = Page(made.html).text
    assert "certified for a risk of at most 20.00 %" in text
    assert "speak against" not in text
    # The cut as a score and as a confidence, with units.
    assert found["threshold"] == selector.threshold
    assert found["confidence"] == selector.chosen.confidence
    assert (
        f"score from {selector.threshold:.6g} in log-odds, which is "
        f"confidence from {selector.chosen.confidence:.6g}"
    ) in text
    # Data of another kind break what was promised.
    made = kc.report_of_predictions(
        (labels + 1) % 4, logits, from_logits=True, selector=selector, verbose=0
    )
    assert "speak against" in Page(made.html).text


def test_slider_rows_are_points_of_the_curve(made):
    labels, logits = noisy_predictions()
    (rows,) = slider(Page(made.html))
    metric = kc.CalibrationMetrics(["aurc"], from_logits=True)
    metric.update_state(labels, logits)
    curve = metric.curve()
    exact = kc.risk_coverage_curve(labels, logits, from_logits=True)
    confidence = softmax(logits.astype("float64")).max(-1)
    wrong = logits.argmax(-1) != labels
    assert rows[0]["risk"] == 0.0
    assert abs(rows[-1]["risk"] - wrong.mean()) < 1e-9
    for row in rows:
        risk, coverage = row["risk"] + 1e-12, row.get("coverage", 0.0)
        best = max([0.0, *curve.coverage[curve.risk <= risk]])
        assert abs(coverage - best) < 1e-12
        # Samples that share a cell are accepted together.
        assert coverage <= max([0.0, *exact.coverage[exact.risk <= risk]])
        if "threshold" not in row:
            continue
        accepted = confidence >= row["threshold"] - 1e-6
        assert abs(accepted.mean() - row["coverage"]) < 0.004
        assert row["observed"] <= row["risk"] + 1e-12
        if row["score"] is not None:
            odds = row["threshold"] / (1.0 - row["threshold"])
            assert abs(row["score"] - np.log(odds)) < 1e-6
        bound = binomial_upper_bound(
            row["observed"] * row["coverage"] * len(labels),
            row["coverage"] * len(labels),
        )
        assert abs(row["bound"] - bound) < 1e-9


def test_report_is_one_file_that_asks_for_nothing(made):
    page = Page(made.html)
    policy = next(a for a in page.all("meta") if "http-equiv" in a)
    assert policy["content"].startswith("default-src 'none'")
    for tag, attrs in page.tags:
        for name in ("src", "href", "action", "srcset", "data", "poster"):
            assert attrs.get(name, "data:").startswith("data:"), tag
    css = re.search(r"<style>(.*?)</style>", made.html, re.DOTALL)[1]
    assert "url(" not in css and "@import" not in css
    pictures = [a for a in page.all("img") if "svg" in a["src"]]
    assert len(pictures) == 3
    for picture in pictures:
        assert picture["alt"]
        svg = base64.b64decode(picture["src"].split(",")[1]).decode()
        assert "</svg>" in svg and "<script" not in svg


def test_what_users_write_is_escaped():
    labels, logits = noisy_predictions(200)
    evil = "<script>alert('x')</script>\"&amp;"
    made = kc.report_of_predictions(
        labels,
        {evil: logits},
        from_logits=True,
        class_names=[f"{evil}{i}" for i in range(4)],
        inputs=np.array([evil] * 200),
        title=evil,
        verbose=0,
    )
    page = Page(made.html)
    assert len(page.all("script")) == 1
    assert evil in page.text
    assert list(made.results) == [evil]
    assert (
        "alert"
        not in re.search(r"<script>(.*?)</script>", made.html, re.DOTALL)[1]
    )


def test_names_that_no_file_can_hold_are_written_with_escapes(tmp_path):
    labels, logits = noisy_predictions(60)
    odd = "$a$_\x00\udc80\uffff"
    shown = "$a$_" + r"\x00\udc80\uffff"
    made = kc.report_of_predictions(
        labels,
        {odd: logits},
        from_logits=True,
        class_names=[f"{odd}{i}" for i in range(4)],
        inputs=np.array([odd] * 60),
        title=odd,
        verbose=0,
    )
    html = made.save(tmp_path / "r.html").read_text(encoding="utf-8")
    assert "\x00" not in html
    assert html.count(shown) > 20
    for picture in Page(html).all("img"):
        ElementTree.fromstring(base64.b64decode(picture["src"].split(",")[1]))


def test_surest_mistakes_are_the_surest(made):
    labels, logits = noisy_predictions(300)
    images = np.zeros((300, 8, 8, 1), "uint8")
    images[:, 0, 0, 0] = np.arange(300) % 256
    report = kc.report_of_predictions(
        labels,
        logits,
        from_logits=True,
        inputs=images,
        num_mistakes=5,
        class_names=["a", "b", "c", "d"],
        verbose=0,
    )
    confidence = softmax(logits.astype("float64")).max(-1)
    wrong = np.flatnonzero(logits.argmax(-1) != labels)
    surest = wrong[np.argsort(-confidence[wrong])][:5]
    shown = re.findall(r"sample (\d+)<", report.html)
    assert [int(i) for i in shown] == surest.tolist()
    pictures = [a for a in Page(report.html).all("img") if "png" in a["src"]]
    assert len(pictures) == 5
    png = base64.b64decode(pictures[0]["src"].split(",")[1])
    assert png.startswith(b"\x89PNG")
    none = kc.report_of_predictions(
        labels, logits, from_logits=True, num_mistakes=0, verbose=0
    )
    assert "surest mistakes" not in Page(none.html).text


def small_model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 6, 1))
    x = keras.layers.Flatten()(inputs)
    return keras.Model(inputs, keras.layers.Dense(3)(x))


def test_report_of_models_reads_the_data_once():
    model, other = small_model(), small_model()
    rng = np.random.default_rng(0)
    x = rng.random((70, 6, 6, 1)).astype("float32")
    y = rng.integers(0, 3, 70)
    reads = []

    def batches():
        reads.append(1)
        for start in range(0, 70, 32):
            yield x[start : start + 32], y[start : start + 32]

    made = kc.report(
        {"one": model, "two": other},
        batches(),
        from_logits=True,
        steps=3,
        verbose=0,
    )
    assert len(reads) == 1
    logits = model.predict(x, verbose=0)
    for name in ("one", "two"):
        assert made.results[name]["num_samples"] == 70
    ece = kc.ece(y, logits, from_logits=True)
    assert abs(made.results["one"]["metrics"]["ece"]["value"] - ece) < 1e-5
    assert "All models" in Page(made.html).text
    assert len(slider(Page(made.html))) == 2
    whole = kc.report(model, (x, y), from_logits=True, verbose=0)
    again = kc.report_of_predictions(y, logits, from_logits=True, verbose=0)
    one, two = (r.results["model"]["metrics"] for r in (whole, again))
    assert abs(one["aurc"]["value"] - two["aurc"]["value"]) < 1e-6


@pytest.mark.portable
def test_report_asks_the_models_what_they_return():
    labels, logits = noisy_predictions(120)
    loss = keras.losses.SparseCategoricalCrossentropy
    models = {}
    for name, activation in (("logits", "linear"), ("probs", "softmax")):
        layers = [keras.Input((4,)), keras.layers.Activation(activation)]
        models[name] = keras.Sequential(layers)
        models[name].compile(loss=loss(from_logits=name == "logits"))
        made = kc.report(models[name], (logits, labels), verbose=0)
        exact = kc.ece(labels, logits, from_logits=True)
        ece = made.results["model"]["metrics"]["ece"]["value"]
        assert abs(ece - exact) < 1e-5
    with pytest.raises(ValueError, match="logits=True, probs=False"):
        kc.report(models, (logits, labels), verbose=0)
    silent = keras.Sequential([keras.Input((4,)), keras.layers.Softmax()])
    with pytest.raises(ValueError, match="from_logits"):
        kc.report(silent, (logits, labels), verbose=0)


@pytest.mark.portable
def test_pixels_and_weights_count_as_in_metrics():
    labels, logits = noisy_predictions(240)
    labels[:50] = 9
    rows, outputs = labels.reshape(4, 60), logits.reshape(4, 60, 4)
    made = kc.report_of_predictions(
        rows, outputs, from_logits=True, ignore_class=9, verbose=0
    )
    kept = labels != 9
    exact = kc.ece(labels[kept], logits[kept], from_logits=True)
    assert abs(made.results["model"]["metrics"]["ece"]["value"] - exact) < 1e-5
    labels = np.where(kept, labels, 0)
    weighted = kc.report_of_predictions(
        labels,
        logits,
        from_logits=True,
        sample_weight=kept.astype("float32"),
        verbose=0,
    )
    other = weighted.results["model"]["metrics"]["ece"]["value"]
    assert abs(other - exact) < 1e-5
    one = made.results["model"]["overconfidence"]["value"]
    other = weighted.results["model"]["overconfidence"]["value"]
    assert abs(one - other) < 1e-9


def test_batches_in_which_nothing_counts_are_left_out():
    labels, logits = noisy_predictions(64)
    made = kc.report(
        keras.Sequential([keras.Input((4,)), keras.layers.Activation(None)]),
        [(logits[:32], np.full(32, 9)), (logits[32:], labels[32:])],
        from_logits=True,
        ignore_class=9,
        verbose=0,
    )
    exact = kc.ece(labels[32:], logits[32:], from_logits=True)
    ece = made.results["model"]["metrics"]["ece"]["value"]
    assert abs(ece - exact) < 1e-5


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"labels": [0, 1]}, ValueError, "the same length"),
        ({"probs": {}}, ValueError, "at least one model. Received: probs="),
        ({"class_names": ["ab", "c"]}, ValueError, "a name for each class"),
        ({"class_names": "abcd"}, TypeError, "`class_names`"),
        (
            {"calibrator": kc.TemperatureScaling()},
            RuntimeError,
            "must be fitted",
        ),
        ({"selector": {"b": None}}, ValueError, "models that are there"),
        ({"num_mistakes": -1}, ValueError, "`num_mistakes`"),
        ({"num_bins": 0}, ValueError, "`num_bins`"),
        ({"num_bins": 101}, ValueError, "num_bins=101, predictions=50"),
        ({"num_bins": 1001}, ValueError, "`num_bins` must be <= 1000"),
        ({"from_logits": False}, ValueError, "probabilities"),
        ({"ignore_class": 0.5}, TypeError, "`ignore_class`"),
    ],
)
def test_bad_arguments_are_refused(changes, error, match):
    labels, logits = noisy_predictions(50)
    given = {
        "labels": labels,
        "probs": logits,
        "from_logits": True,
        "verbose": 0,
        **changes,
    }
    with pytest.raises(error, match=match):
        kc.report_of_predictions(**given)


def test_calibrators_of_several_models_need_their_names():
    labels, logits = noisy_predictions(50)
    calibrator = kc.TemperatureScaling().fit(labels, logits)
    models = {"a": logits, "b": logits / 2}
    options = {"from_logits": True, "verbose": 0}
    with pytest.raises(ValueError, match="must be a dict by their names"):
        kc.report_of_predictions(
            labels, models, calibrator=calibrator, **options
        )
    made = kc.report_of_predictions(
        labels, models, calibrator={"b": calibrator}, **options
    )
    assert "calibrated_metrics" not in made.results["a"]
    assert "calibrated_metrics" in made.results["b"]


def test_save_leaves_a_whole_file_or_the_old_one(made, tmp_path):
    path = made.save(tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8") == made.html
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    broken = kc.Report(None, {})
    with pytest.raises(TypeError):
        broken.save(path)
    assert path.read_text(encoding="utf-8") == made.html
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    for name in ("r.pdf", "r", "r.html.zip"):
        with pytest.raises(ValueError, match="`path` must end in .html"):
            made.save(tmp_path / name)
    with pytest.raises(ValueError, match="`path` must be a file"):
        (tmp_path / "folder.html").mkdir()
        made.save(tmp_path / "folder.html")


# Files of predictions, and the command.


def write(path, labels, **arrays):
    """The same predictions in each format."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    if path.suffix == ".npz":
        np.savez(path, labels=labels, **arrays)
        return path
    ((name, values),) = arrays.items()
    if path.name.startswith("lists"):
        columns = {"label": labels, name: list(values)}
    else:
        columns = {
            f"{name.rstrip('s')}_{k}": values[:, k]
            for k in reversed(range(values.shape[-1]))
        }
        columns["label"] = labels
    table = pa.table(columns)
    if path.suffix == ".csv":
        pa.csv.write_csv(table, path)
    else:
        pa.parquet.write_table(table, path)
    return path


@pytest.mark.parametrize(
    "name",
    ["a.npz", "a.csv", "a.parquet", "lists.parquet"],
)
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_files_of_predictions_are_read_alike(tmp_path, name, kind):
    labels, logits = noisy_predictions(40, 12)
    values = logits if kind == "logits" else softmax(logits)
    file = open_predictions(write(tmp_path / name, labels, **{kind: values}))
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
        ("text.csv", "label,prob_0,prob_1\ncat,0.5,0.5\n", "column `label`"),
        ("none.csv", "label,prob_0,prob_1\n1,,0.5\n", "column `prob_0`"),
        ("odd.csv", "label,prob_0,prob_1\n1,a,0.5\n", "readable .csv"),
        ("both.csv", "label,prob_0,logit_0\n1,0,1\n", "must have `label`"),
        ("bare.csv", "class,prob_0\n1,1\n", "must have `label`"),
        ("empty.csv", "label,prob_0,prob_1\n", "must have samples"),
        ("broken.parquet", "PAR1 no", "readable .parquet"),
        ("broken.npz", "PK no", "plain arrays"),
        ("other.pkl", "", "must end in"),
    ],
)
def test_bad_files_are_named_with_what_is_wrong(tmp_path, name, text, match):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=match):
        open_predictions(tmp_path / name).read()


def test_bad_arrays_in_files_are_refused(tmp_path):
    labels, logits = noisy_predictions(10)
    # Reading this would run what it holds.
    pickled = np.array([{"a": 1}] * 10, dtype=object)
    path = write(tmp_path / "pickled.npz", labels, logits=pickled)
    with pytest.raises(ValueError, match="plain arrays"):
        open_predictions(path)
    path = write(tmp_path / "a.npz", labels, logits=logits, probs=logits)
    with pytest.raises(ValueError, match="either `logits` or `probs`"):
        open_predictions(path)
    path = write(tmp_path / "b.npz", labels[:9], logits=logits)
    with pytest.raises(ValueError, match="one length"):
        open_predictions(path)
    with pytest.raises(FileNotFoundError, match="must be a file"):
        open_predictions(tmp_path / "absent.npz")


def test_command_writes_what_the_function_makes(tmp_path, capsys):
    parts = {
        name: noisy_predictions(2000, seed=i) for i, name in enumerate("tcs")
    }
    files = {
        name: write(tmp_path / f"{name}.npz", labels, logits=logits)
        for name, (labels, logits) in parts.items()
    }
    out = tmp_path / "report.html"
    code = main(
        [
            "report",
            f"--predictions={files['t']}",
            f"--calibration={files['c']}",
            f"--selection={files['s']}",
            "--risk=0.2",
            f"--out={out}",
            "--quiet",
        ]
    )
    assert code == 0
    assert capsys.readouterr().out.strip() == str(out)
    text = Page(out.read_text(encoding="utf-8")).text
    ece = kc.ece(*parts["t"], from_logits=True)
    assert f"ECE {ece:.4f}" in text
    assert "certified for a risk of at most 20.00 %" in text
    assert "After calibration" in text


def test_command_compares_files_of_the_same_labels(tmp_path, capsys):
    labels, logits = noisy_predictions(50)
    one = write(tmp_path / "one.parquet", labels, logits=logits)
    two = write(tmp_path / "two.csv", labels, logits=logits / 2)
    out = tmp_path / "report.html"
    given = ["report", f"--out={out}", "--quiet", f"--predictions={one}"]
    assert main([*given, f"--predictions={two}"]) == 0
    text = Page(out.read_text(encoding="utf-8")).text
    for scale in (1, 2):
        ece = kc.ece(labels, logits / scale, from_logits=True)
        assert f"ECE {ece:.4f}" in text
    capsys.readouterr()
    for count in (49, 50):
        others = np.roll(labels, 1)[:count]
        other = write(tmp_path / "o.npz", others, logits=logits[:count])
        assert main([*given, f"--predictions={other}"]) == 1
        assert "same labels" in capsys.readouterr().err


def refused(capsys, *arguments):
    """The code and the last line of a command that must not succeed."""
    try:
        code = main(["report", "--quiet", *arguments])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert not captured.out
    return code, captured.err.strip().splitlines()[-1]


@pytest.fixture
def command_files(tmp_path, monkeypatch):
    """Files of one set of data in many forms, and of others."""
    monkeypatch.chdir(tmp_path)
    labels, logits = noisy_predictions(300)
    others = noisy_predictions(300, seed=1)
    twenty = np.random.default_rng(0).normal(size=(300, 20))
    order = np.random.default_rng(0).permutation(300)
    for name, own, arrays in (
        ("t", labels, {"logits": logits}),
        ("s", others[0], {"logits": others[1]}),
        ("twenty", labels, {"logits": twenty}),
        ("turned", labels[order], {"logits": logits[order]}),
        ("part", labels[order][:100], {"logits": logits[order][:100]}),
        ("half", labels, {"logits": logits.astype("float16")}),
        ("shifted", labels, {"logits": logits + 3}),
        ("changed", labels, {"probs": softmax(logits)}),
        ("named", labels, {"probs": logits}),
        ("odd", labels, {"logits": softmax(logits)}),
        ("sigmoid", others[0], {"probs": 1 / (1 + np.exp(-others[1]))}),
        ("nan", labels, {"logits": np.where(logits > 5, np.nan, logits)}),
        ("ids", labels + 4, {"logits": logits}),
        ("flat", labels, {"logits": logits[:, 0]}),
        ("letters", labels.astype("U1"), {"logits": logits}),
        ("dense", labels.reshape(3, -1), {"logits": logits.reshape(3, -1, 4)}),
        ("classes", labels, {"logits": logits, "class_names": ["a", "b"]}),
    ):
        np.savez(f"{name}.npz", labels=own, **arrays)
    write(tmp_path / "t.csv", labels, logits=logits)
    write(tmp_path / "short.csv", labels, logits=logits.round(3))
    whole = (tmp_path / "t.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:-60])
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    (tmp_path / "flipped.npz").write_bytes(flipped)
    np.save("array.npy", logits)
    (tmp_path / "array.npy").rename("array.npz")
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "link.npz").symlink_to("t.npz")
    (tmp_path / "latin.csv").write_bytes(b"label,prob_0,prob_1,\xe9\n0,1,0,1\n")
    (tmp_path / "twice.csv").write_text("label,prob_0,prob_0\n0,1,0\n")
    return tmp_path


@pytest.mark.parametrize("code", [1, 2])
def test_command_refuses_and_says_why(command_files, capsys, code):
    select = ["--selection=s.npz", "--risk=0.1"]
    choose = ["--risk=0.1", "--selection"]
    cases = {
        1: [
            # The same data, in other files, orders and formats, or a part.
            (["--calibration=turned.npz"], "different data"),
            (["--calibration=t.csv"], "different data"),
            (["--calibration=part.npz"], "100.0 % of the smaller one"),
            # The same with other digits, or in another form.
            (["--calibration=half.npz"], "in both, but for their digits"),
            (["--calibration=shifted.npz"], "in both, but for their digits"),
            (["--calibration=changed.npz"], "in both, but for their digits"),
            (["--calibration=short.csv"], "in both, but for their digits"),
            (["--calibration=twenty.npz"], "4 classes in .*20 in --calib"),
            (["--calibration=twenty.npz", *select], "20 in --calib"),
            (["--predictions=twenty.npz"], "twenty.npz"),
            (["--bins=301"], "^error: --bins must .* --bins=301, predict"),
            # What the file holds is not what it says.
            (["--calibration=odd.npz"], "call the array .*`probs`"),
            (["--calibration=named.npz"], "call the array .*`logits`"),
            (
                ["--calibration=sigmoid.npz"],
                "sigmoid.npz: .* must sum to 1 .* logits need the array `logit",
            ),
            ([f"{choose[1]}=sigmoid.npz", choose[0]], "npz: .* must sum to 1"),
            (["--calibration=nan.npz"], "nan.npz: .* must not contain NaN"),
            (["--calibration=ids.npz"], r"class ids in \[0, 4\)"),
            (["--calibration=flat.npz"], r"of shape \(n, 1\)"),
            (["--calibration=letters.npz"], "`labels` .* must hold numbers"),
            (["--calibration=classes.npz"], "2 names, 4 classes"),
            (["--calibration=latin.csv"], "must be a readable .csv file"),
            (["--calibration=twice.csv"], r"once. Received: twice=\['prob_0'"),
            (["--calibration=cut.npz"], "cut.npz must be an .npz file"),
            (["--calibration=flipped.npz"], "flipped.npz must be an .npz"),
            (["--calibration=array.npz"], "array.npz must be an .npz file"),
            (["--calibration=t.pkl"], "must end in .npz, .csv or .parquet"),
            (["--calibration=absent.npz"], "must be a file"),
            ([f"{choose[1]}=dense.npz", choose[0]], "one prediction for each"),
            # Words of the library name what is a flag here.
            (
                ["--selection=s.npz", "--risk=0.001"],
                "s.npz: No threshold .* this --risk, .* ask for --risk=0.*"
                "Received: --risk=0.001, --delta=0.05, samples",
            ),
        ],
        2: [
            (["--risk=0.1"], "--risk needs --selection"),
            (["--selection=s.npz"], "--selection needs --risk"),
            ([*select, "--predictions=named.npz"], "one file of --predictions"),
            ([*select, "--calibration=s.npz"], "must be different data"),
            (["--calibration=link.npz"], "must be different data"),
            (["--calibration=./t.npz"], "must be different data"),
            (["--bins=100000"], "--bins: must be <= 1000.*: --bins=100000"),
            (["--bins=0"], "--bins: must be >= 1"),
            (["--bins=many"], "--bins: must be a whole number"),
            ([*select, "--delta=0"], "--delta: must be a number between"),
            (["--risk=nan", "--selection=s.npz"], "--risk: must be a number"),
            (["--out=o.pdf"], "--out: must end in .html"),
            (["--out=o"], "--out: must end in .html"),
            (["--out=folder.html"], "--out: must be a file"),
        ],
    }
    for arguments, words in cases[code]:
        given = ["--predictions=t.npz", "--out=o.html", *arguments]
        found, line = refused(capsys, *given)
        assert found == code, (arguments, line)
        assert re.search(words, line), (arguments, line)
    assert not (command_files / "o.html").exists()
    assert not list(command_files.glob("*.pdf"))


def test_command_writes_to_standard_output(command_files, capfdbinary):
    # A little of other data may be in both, and is told.
    with np.load("s.npz") as s, np.load("t.npz") as t:
        arrays = {
            name: np.concatenate([s[name], t[name][:20]]) for name in s.files
        }
    np.savez("s.npz", **arrays)
    with pytest.warns(UserWarning, match="6.7 % of the smaller one"):
        code = main(
            ["report", "--predictions=t.npz", "--calibration=s.npz", "--out=-"]
        )
    assert code == 0
    page = capfdbinary.readouterr().out.decode("utf-8")
    assert page.startswith("<!DOCTYPE html>") and page.endswith("</html>")
    assert "After calibration" in page
    assert not (command_files / "-").exists()


def test_command_lets_few_digits_be_alike_by_chance(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    given = ["--predictions=t.npz", "--calibration=c.npz", "--out=o.html"]

    def save(name, second):
        labels = (random.random(len(second)) < second).astype(int)
        np.savez(name, labels=labels, probs=second[:, None])

    def four(x):
        return x.round(4)

    for coarse, of_test, of_calibration, shape in (
        (four, 10_000, 1000, (0.5, 0.5)),
        (four, 1000, 1000, (2.0, 1.0)),
        (np.float16, 2000, 200, (0.5, 0.5)),
    ):
        save("t.npz", coarse(random.beta(0.5, 0.5, of_test)))
        save("c.npz", coarse(random.beta(*shape, of_calibration)))
        assert main(["report", "--quiet", *given]) == 0, (of_test, shape)
    # What was copied is seen all the same.
    test = random.beta(0.5, 0.5, 1000).round(4)
    save("t.npz", test)
    save("c.npz", random.permutation(test)[:100])
    capsys.readouterr()
    code, line = refused(capsys, *given)
    assert code == 1 and "must be different data" in line


@pytest.mark.filterwarnings("error")
def test_samples_that_are_independent_are_apart():
    random = np.random.default_rng(0)
    for trial in range(200):
        num_classes = (2, 3, 10)[trial % 3]
        keys = {}
        for name, size in zip("ab", random.choice([100, 1000], 2), strict=True):
            # Of one distribution or two, confident or not, coarse or not.
            logits = 2.0 * random.normal(size=(size, num_classes))
            sure = random.integers(num_classes, size=size)
            logits[np.arange(size), sure] += random.choice([0.0, 8.0, 14.0])
            probs = softmax(logits)
            if random.random() < 0.3:
                probs = probs.round(3)
            keys[name] = row_keys(probs, False)
        check_apart(keys)


def test_help_is_had_from_a_shell():
    run = subprocess.run(
        [sys.executable, "-m", "keras_calib", "report", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    for word in ("parquet", "--calibration", "exit codes", "logit_0"):
        assert word in run.stdout


def test_risk_steps_say_where_no_threshold_is_strict_enough():
    # The surest prediction is wrong.
    labels, logits = [1, 0, 0], [[9.0, 0.0], [1.0, 0.0], [0.5, 0.0]]
    made = kc.report_of_predictions(labels, logits, from_logits=True, verbose=0)
    (rows,) = slider(Page(made.html))
    assert "threshold" not in rows[0]
    assert rows[-1]["coverage"] == 1.0
    assert len(rows) == 201
