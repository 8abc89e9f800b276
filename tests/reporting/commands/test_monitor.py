"""`keras-calib monitor` finds what a `Monitor` of the same answers finds."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from cases import BACKEND
from noisy_predictions import noisy_predictions

import keras_calib as kc
from keras_calib import Monitor, SelectiveClassifier
from keras_calib.backend.locks import PathLock
from keras_calib.reporting.command_line import main
from keras_calib.reporting.commands.answer_log import AnswerLog

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

needs_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)
NUM = 6000


def stream(seed, wrong):
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.9, 1.0, NUM)
    correct = np.where(rng.random(NUM) < confidence - wrong, 1.0, 0.0)
    known = rng.random(NUM) < 0.6
    ids = [f"{seed}-{i}" for i in range(NUM)]
    return ids, confidence, confidence > 0.92, correct, known


GOOD, BAD = stream(1, 0.0), stream(2, 0.1)


def write(path, ids, confidence, accepted, correct, known):
    """One log, in the form that its name asks for."""
    seen = np.where(known, correct, np.nan)
    texts = ["" if np.isnan(x) else str(bool(x)) for x in seen]
    values = [None if np.isnan(x) else bool(x) for x in seen]
    columns = {"id": ids, "confidence": confidence, "accepted": accepted}
    rows = zip(ids, confidence.tolist(), accepted.tolist(), strict=True)
    if path.suffix == ".npz":
        np.savez(path, **columns, correct=seen)
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({**columns, "correct": values}), path)
    elif path.suffix == ".csv":
        lines = [
            f"{i},{c!r},{a},{t}"
            for (i, c, a), t in zip(rows, texts, strict=True)
        ]
        head = "id,confidence,accepted,correct"
        path.write_text("\n".join([head, *lines]))
    else:
        with open(path, "w") as file:
            for row, value in zip(rows, values, strict=True):
                record = dict(zip(columns, row, strict=True))
                if value is not None:
                    record["correct"] = value
                file.write(json.dumps(record) + "\n")
    return path


def write_labels(path, ids, correct, known):
    lines = [
        f"{i},{c:g}" for i, c, k in zip(ids, correct, known, strict=True) if k
    ]
    path.write_text("\n".join(["id,correct", *lines]))
    return path


def said(capsys, *arguments):
    code = main(["monitor", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


def facts(monitor):
    """Alarms without the last digits of their evidence."""
    return [
        dataclasses.replace(alarm, evidence=0.0) for alarm in monitor.alarms
    ]


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet", "jsonl"])
def test_a_log_of_any_form_gives_the_alarms_of_a_monitor(
    tmp_path, capsys, ending
):
    log = write(tmp_path / f"log.{ending}", *BAD)
    state = tmp_path / "s.npz"
    code, shown = said(capsys, f"--log={log}", "--risk=0.1", f"--state={state}")
    ids, confidence, accepted, correct, known = BAD
    monitor = Monitor(risk=0.1, max_waiting=100_000).update(
        confidence, accepted, np.where(known, correct, np.nan), ids=ids
    )
    assert code == 3
    assert "Alarm of risk at outcome" in shown and "6,000 answers" in shown
    for alarm in monitor.alarms:
        assert alarm.message in shown
    assert facts(Monitor.load(state)) == facts(monitor)
    assert Monitor.load(state).counts == pytest.approx(monitor.counts)


def test_runs_go_on_where_the_last_ended(tmp_path, capsys):
    state = f"--state={tmp_path / 's.npz'}"
    logs = [write(tmp_path / f"{i}.npz", *x) for i, x in enumerate((GOOD, BAD))]
    late = [
        write_labels(tmp_path / f"{i}.csv", ids, correct, ~known)
        for i, (ids, _, _, correct, known) in enumerate((GOOD, BAD))
    ]
    watched = ("--risk=0.1", "--coverage=0.5,0.9", "--tolerance=0.02")
    code, shown = said(
        capsys, f"--log={logs[0]}", f"--late-labels={late[0]}", state, *watched
    )
    assert code == 0 and "No alarm." in shown and "0 answers wait" in shown
    kept = (tmp_path / "s.npz").read_bytes()
    for again in (f"--log={logs[0]}", f"--late-labels={late[0]}"):
        code, shown = said(capsys, again, state)
        assert code == 1 and "repeated=" in shown
        assert ("give each log once" in shown) == again.startswith("--log")
    assert (tmp_path / "s.npz").read_bytes() == kept
    assert said(capsys, f"--log={logs[1]}", state)[0] == 3
    assert said(capsys, f"--late-labels={late[1]}", state)[0] == 3
    code, shown = said(
        capsys, f"--late-labels={late[1]}", state, "--unknown=skip"
    )
    assert code == 3 and "labels of" in shown and "were left out" in shown
    wanted = Monitor(
        risk=0.1, coverage=(0.5, 0.9), tolerance=0.02, max_waiting=100_000
    )
    for ids, confidence, accepted, correct, known in (GOOD, BAD):
        seen = np.where(known, correct, np.nan)
        wanted.update(confidence, accepted, seen, ids=ids)
        names = [x for x, k in zip(ids, known, strict=True) if not k]
        wanted.update_labels(names, correct[~known])
    found = Monitor.load(tmp_path / "s.npz")
    assert facts(found) == facts(wanted)
    assert found.evidence == pytest.approx(wanted.evidence)
    code, shown = said(capsys, state, "--restart")
    assert code == 0 and "No alarm." in shown


def test_a_log_given_again_is_seen_though_few_ids_are_kept(tmp_path, capsys):
    state = f"--state={tmp_path / 's.npz'}"
    log = f"--log={write(tmp_path / 'log.npz', *GOOD)}"
    assert said(capsys, log, state, "--risk=0.2", "--max-waiting=50")[0] == 0
    assert said(capsys, log, state)[0] == 1


def test_a_class_and_a_score_say_what_a_log_leaves_out(tmp_path, capsys):
    path = tmp_path / "log.csv"
    rows = [f"{i},{i / 100},cat,{('cat', 'dog', '')[i % 3]}" for i in range(90)]
    path.write_text("\n".join(["key,score,predicted,label", *rows]))
    code, shown = said(
        capsys,
        f"--log={path}",
        "--ids=key",
        "--threshold=0.3",
        "--risk=0.6",
        "--tolerance=none",
    )
    assert code == 0
    assert "90 answers, 60 accepted (66.67 %)" in shown
    assert "60 labels, 40 of accepted answers, of which 20" in shown
    assert "30 answers wait for a label" in shown


NAN = float("nan")


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet", "jsonl"])
@pytest.mark.parametrize(
    ("label", "predicted", "correct"),
    [
        (["a", "A"], ["A", "A"], [0, 1]),
        (["None", "null", "nan"], ["None", "a", "nan"], [1, 0, 1]),
        ([1.0, NAN, 2.0], [1, 1, 1], [1, NAN, 0]),
        ([True, False], [True, True], [1, 0]),
    ],
)
def test_a_label_is_compared_as_it_is_spelt(
    tmp_path, ending, label, predicted, correct
):
    path = tmp_path / f"log.{ending}"
    columns = {"label": label, "predicted": predicted}
    rows = [*zip(label, predicted, strict=True)]
    if ending == "npz":
        np.savez(path, **columns)
    elif ending == "parquet":
        pq.write_table(pa.table(columns), path)
    elif ending == "csv":
        lines = [f"{'' if x != x else x},{y}" for x, y in rows]
        path.write_text("\n".join(["label,predicted", *lines]))
    else:
        lines = [json.dumps(dict(zip(columns, x, strict=True))) for x in rows]
        path.write_text("\n".join(lines))
    (found,) = AnswerLog(path, {}).parts()
    np.testing.assert_array_equal(found["correct"], correct)


def test_a_column_that_comes_late_is_read(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"id": 1}\n' * 5000 + '{"id": 2, "correct": 0}\n')
    *_, last = AnswerLog(path, {}).parts()
    assert last["correct"][-1] == 0.0


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fitted selector, in a model and in the certificate of an export."""
    folder = tmp_path_factory.mktemp("selector")
    rng = np.random.default_rng(0)
    logits = 4.0 * rng.normal(size=(500, 3)).astype("float32")
    labels = np.where(rng.random(500) < 0.04, 0, logits.argmax(-1))
    selector = SelectiveClassifier()
    selector.fit(labels, logits, risk=0.1, delta=0.05)
    model = keras.Sequential([keras.Input((3,)), selector])
    model.save(folder / "s.keras")
    if BACKEND == "tensorflow":
        model = keras.Sequential([keras.Input((3,)), keras.layers.Identity()])
        kc.export(
            model,
            folder / "m",
            selector=selector,
            from_logits=True,
            certificate=True,
        )
        text = (folder / "m/assets.extra/certificate.json").read_text()
        (folder / "c.json").write_text(text)
    return selector, folder


@pytest.mark.parametrize(
    "name", ["s.keras", pytest.param("c.json", marks=needs_tensorflow)]
)
def test_a_selector_says_what_to_watch(tmp_path, capsys, fitted, name):
    selector, folder = fitted
    chosen = selector.chosen
    log = write(tmp_path / "log.npz", *GOOD)
    code, _ = said(
        capsys,
        f"--log={log}",
        f"--selector={folder / name}",
        f"--state={tmp_path / 'm.npz'}",
    )
    found = Monitor.load(tmp_path / "m.npz")
    assert code in (0, 3)
    assert found.risk == chosen.limit == 0.1
    # Half of the coverage's part of alpha, by Dvoretzky, Kiefer and Wolfowitz.
    width = np.sqrt(np.log(2 / 0.00625) / (2 * 500))
    ends = chosen.coverage - width, min(chosen.coverage + width, 1.0)
    assert found.coverage == pytest.approx(ends, rel=1e-12)


def test_the_file_of_a_threshold_says_what_to_watch(tmp_path, capsys):
    ids, confidence, _, correct, _ = GOOD
    log = tmp_path / "log.csv"
    rows = zip(ids, confidence.round(6), correct.astype(int), strict=True)
    lines = [",".join(map(str, row)) for row in rows]
    log.write_text("\n".join(["id,confidence,correct", *lines]))
    rule, state = tmp_path / "t.json", tmp_path / "s.npz"
    given = str(log), "--risk=0.05", f"--out={rule}", "--quiet"
    assert main(["threshold", *given]) == 0
    given = f"--log={log}", f"--threshold={rule}", f"--state={state}"
    code, _ = said(capsys, *given)
    found, facts = Monitor.load(state), json.loads(rule.read_text())
    assert code == 0 and found.risk == 0.05
    coverage = facts["selection"]["coverage"]
    assert found.coverage[0] < coverage < found.coverage[1]
    same = Monitor(kc.exporting.load_threshold(rule), max_waiting=100_000)
    assert same.coverage == found.coverage and same.risk == found.risk
    with pytest.raises(TypeError, match="`exporting.load_threshold"):
        Monitor(str(rule))
    # Each run may name it again; another one is not what is watched.
    given_again = f"--state={state}", "--restart", f"--selector={rule}"
    assert "warning" not in said(capsys, *given_again)[1]
    other = str(log), "--risk=0.06", f"--out={rule}", "--quiet"
    assert main(["threshold", *other]) == 0
    assert "--selector has another risk" in said(capsys, *given_again)[1]
    # What is told counts more, and the state knows both.
    state.unlink()
    assert said(capsys, *given, "--risk=0.2")[0] == 0
    found = Monitor.load(state)
    assert found.risk == 0.2 and found.coverage is not None


@pytest.mark.parametrize("ending", [".npz", ".csv"])
def test_outputs_of_all_classes_are_a_log_of_their_confidence(
    tmp_path, capsys, ending
):
    labels, logits = noisy_predictions(600, 3)
    ids = np.arange(600)
    p = kc.Predictions(labels, logits, from_logits=True, ids=ids)
    path, alone = tmp_path / f"p{ending}", tmp_path / "alone.npz"
    p.write(path)
    columns = {"confidence": p.confidence, "correct": p.correct, "id": ids}
    np.savez(alone, **columns)
    rule = tmp_path / "t.json"
    given = "threshold", str(path), "--coverage=0.7", f"--out={rule}"
    assert main([*given, "--quiet"]) == 0 and capsys.readouterr()
    given = f"--threshold={rule}", "--risk=0.5"
    found = [said(capsys, x, *given) for x in (path, alone)]
    assert found[0] == found[1] and "600 answers, 4" in found[0][1]
    # Nothing calibrated them, which is no change.
    assert found[0][0] == 3 and "--tolerance=none leaves it out" in found[0][1]
    given = f"--threshold={rule}", "--risk=0.5", "--tolerance=none"
    assert "--tolerance" not in said(capsys, path, *given)[1]


def test_a_log_has_no_need_of_the_names_of_its_labels(tmp_path, capsys):
    log, late = tmp_path / "log.csv", tmp_path / "late.csv"
    log.write_text("id,confidence,accepted\n1,0.9,1\n2,0.8,1")
    late.write_text("id,truth,said\n1,x,x\n2,x,y")
    names = "--labels=truth", "--predicted=said"
    given = str(log), f"--late-labels={late}", "--risk=0.9"
    code, shown = said(capsys, *given, *names)
    assert code == 0 and "2 labels, 2 of accepted answers, of which 1" in shown
    code, shown = said(capsys, *given, "--labels=said", "--predicted=true")
    assert code == 1 and f"--late-labels={late}: late.csv must" in shown
    code, shown = said(capsys, str(log), "--risk=0.9", *names)
    assert code == 1 and "absent=['truth', 'said']" in shown


@needs_tensorflow
def test_a_changed_certificate_is_refused(tmp_path, capsys, fitted):
    path, log = tmp_path / "c.json", write(tmp_path / "log.npz", *GOOD)
    text = (fitted[1] / "c.json").read_text()
    for old, new, words in (
        ('"certified_risk": 0.1', '"certified_risk": 0.2', "since it was made"),
        ("\n", "", "must be unchanged"),
        ("{", "[", "complete JSON"),
    ):
        path.write_text(text.replace(old, new))
        code, shown = said(capsys, f"--log={log}", f"--selector={path}")
        assert code == 1 and words in shown, shown


@pytest.mark.parametrize("ending", ["png", "svg", "html"])
def test_a_picture_is_drawn(tmp_path, capsys, ending):
    log, out = write(tmp_path / "log.npz", *BAD), tmp_path / f"m.{ending}"
    said(capsys, f"--log={log}", "--risk=0.1", f"--out={out}")
    start = {"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!DOCTYPE"}
    content = out.read_bytes()
    assert content.startswith(start[ending])
    if ending == "html":
        assert b"<svg" in content and b"Alarm of risk" in content


def test_a_run_that_cannot_draw_leaves_the_state(tmp_path, capsys):
    log, state = write(tmp_path / "log.npz", *GOOD), tmp_path / "s.npz"
    (tmp_path / "file").touch()
    code, _ = said(
        capsys,
        f"--log={log}",
        f"--state={state}",
        "--risk=0.1",
        f"--out={tmp_path / 'file' / 'm.svg'}",
    )
    assert code == 1 and not state.exists()


def test_a_state_in_use_is_left_alone(tmp_path, capsys, monkeypatch):
    log = write(tmp_path / "log.npz", *GOOD)

    def taken(self):
        raise RuntimeError("`state` is written by another process")

    monkeypatch.setattr(PathLock, "acquire", taken)
    code, shown = said(capsys, f"--log={log}", f"--state={tmp_path / 's.npz'}")
    assert code == 1 and "another process" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--log, the answers, must be given"),
        (("--log=a.csv", "--restart"), "--restart needs --state"),
        (("--log=a.csv", "--risk=1.5"), "between 0 and 1"),
        (("--log=a.csv", "--coverage=0.8,0.6"), "such as 0.6,0.8"),
        (("--log=a.csv", "--tolerance=x"), "or none"),
        (("--log=a.csv", "--state=s.txt"), "ends in .npz"),
        (("--log=a.csv", "--threshold=nan"), "--threshold: must be a number"),
        (("--log=a.csv", "--out=o.pdf"), ".png or .svg or .html"),
        (("--state=s.npz", "--restart=all,x"), "Received: all,x"),
    ],
)
def test_wrong_arguments_are_told(capsys, arguments, words):
    with pytest.raises(SystemExit) as stop:
        main(["monitor", *arguments])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_help_says_what_a_log_holds_and_how_the_command_ends(capsys):
    with pytest.raises(SystemExit):
        main(["monitor", "--help"])
    shown = capsys.readouterr().out
    for word in ("confidence", "exit code 3", "--unknown", "jsonl", "--state"):
        assert word in shown
