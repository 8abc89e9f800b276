"""Files of predictions in every format, and what is wrong with some."""

import json

import numpy as np
import pytest
from noisy_predictions import noisy_predictions, softmax
from report_pages import write_file

from keras_calib.predictions import Predictions
from keras_calib.reporting.commands.answer_log import AnswerLog


@pytest.mark.parametrize(
    "name",
    ["a.npz", "a.csv", "a.parquet", "lists.parquet"],
)
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_files_of_predictions_are_read_alike(tmp_path, name, kind):
    labels, logits = noisy_predictions(40, 12)
    values = logits if kind == "logits" else softmax(logits)
    p = Predictions.read(write_file(tmp_path / name, labels, **{kind: values}))
    assert p.from_logits == (kind == "logits")
    np.testing.assert_array_equal(p.labels, labels)
    np.testing.assert_allclose(p.outputs, values, rtol=1e-6)
    # On disk, until it is asked for.
    assert np.shares_memory(p.outputs, p[:9].outputs)
    assert isinstance(p.outputs.base, np.memmap)
    assert p.collect().outputs.base is None


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("gap.csv", "label,prob_0,prob_2\n0,0.5,0.5\n", "`prob_0` to `prob_1`"),
        ("text.csv", "label,prob_0,prob_1\ncat,0.5,0.5\n", "`label` must hold"),
        ("none.csv", "label,prob_0,prob_1\n1,,0.5\n", "`prob_0` must have"),
        ("odd.csv", "label,prob_0,prob_1\n1,a,0.5\n", "`prob_0` must hold"),
        ("both.csv", "label,prob_0,logit_0\n1,0,1\n", "must have `label` or"),
        ("bare.csv", "class,prob_0\n1,1\n", "must have `label` or"),
        (
            "judge.csv",
            "confidence\n0.5\n",
            "what was right: by a column `correct`",
        ),
        ("empty.csv", "label,prob_0,prob_1\n", "must have samples"),
        ("broken.parquet", "PAR1 no", "readable .parquet"),
        ("broken.npz", "PK no", "plain arrays"),
        ("other.pkl", "", "must end in"),
    ],
)
def test_bad_files_are_named_with_what_is_wrong(tmp_path, name, text, match):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=match):
        Predictions.read(tmp_path / name)


def test_bad_arrays_in_files_are_refused(tmp_path):
    labels, logits = noisy_predictions(10)
    # Reading this would run what it holds.
    pickled = np.array([{"a": 1}] * 10, dtype=object)
    path = write_file(tmp_path / "pickled.npz", labels, logits=pickled)
    with pytest.raises(ValueError, match="plain arrays"):
        Predictions.read(path)
    path = write_file(tmp_path / "a.npz", labels, logits=logits, probs=logits)
    with pytest.raises(ValueError, match="either `logits` or"):
        Predictions.read(path)
    path = write_file(tmp_path / "b.npz", labels[:9], logits=logits)
    with pytest.raises(ValueError, match="one length"):
        Predictions.read(path)
    with pytest.raises(ValueError, match="No such file"):
        Predictions.read(tmp_path / "absent.npz")


def test_correctness_of_minus_0_is_wrong(tmp_path):
    path = tmp_path / "records.npz"
    np.savez(path, confidence=[0.9, 0.6, 0.7], correct=[1.0, -0.0, 0.0])
    rows = Predictions.read(path)
    assert np.unique(rows.labels, return_counts=True)[1].tolist() == [2, 1]


@pytest.mark.parametrize(
    "lines",
    [
        ["confidence,correct", "0.9,1", "0.8,", "0.7,0"],
        [
            "confidence,label,predicted",
            *("0.9,cat,cat", "0.8,,eel", "0.7,eel,cat"),
        ],
    ],
)
@pytest.mark.parametrize("names", [None, ["cat", "eel"]])
def test_a_row_without_a_label_counts_nowhere(tmp_path, lines, names):
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines))
    with pytest.warns(RuntimeWarning, match="log.csv has 1 rows without"):
        log = Predictions.read(path, class_names=names)
    assert log.sample_weight.tolist() == [1.0, 0.0, 1.0]
    assert log.outcomes().correct.tolist() == [1.0, 0.0]


NAMES = ("cat", "dog", "eel")


def write_table(path, separator, columns):
    """A text file of columns, with decimal commas if that is no separator."""
    rows = zip(*columns.values(), strict=True)
    lines = [separator.join(columns)]
    for row in rows:
        cells = (repr(x) if isinstance(x, float) else str(x) for x in row)
        line = separator.join(cells)
        lines.append(line if separator == "," else line.replace(".", ","))
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    return path


@pytest.mark.parametrize(
    ("prefix", "separator", "labels", "options"),
    [
        ("prob_", ",", "label", {}),
        ("p.", ",", "y", {"labels": "y", "probs": "p.*"}),
        ("p_", ";", "y", {"labels": "y", "probs": "p", "decimal": ","}),
        (
            "",
            "\t",
            "label",
            {"probs": "cat,dog,eel", "decimal": ",", "separator": "\t"},
        ),
        ("p_", "|", "label", {"probs": "p_", "class_names": list(NAMES)}),
        ("", ",", "label", {"probs": ["cat", "dog", "eel"]}),
    ],
)
def test_columns_and_labels_may_have_any_names(
    tmp_path, prefix, separator, labels, options
):
    if separator == "|":
        options = {**options, "decimal": ","}
    ids, logits = noisy_predictions(40, 3)
    probs = softmax(logits.astype("float64"))
    order = (0, 1, 2) if "," in options.get("probs", "") else (2, 0, 1)
    columns = {f"{prefix}{NAMES[k]}": probs[:, k].tolist() for k in order}
    columns[labels] = [NAMES[k] for k in ids]
    columns["number"] = range(40)
    path = write_table(tmp_path / "a.csv", separator, columns)
    rows = Predictions.read(path, **options, ids="number")
    names = np.asarray(rows.class_names)
    assert sorted(names) == sorted(NAMES)
    assert names[rows.labels].tolist() == columns[labels]
    for k, name in enumerate(names):
        np.testing.assert_array_equal(
            rows.outputs[:, k], columns[f"{prefix}{name}"]
        )
    assert rows.ids.tolist() == [str(k) for k in range(40)]


@pytest.mark.parametrize("first", [0, 1])
def test_labels_are_the_numbers_of_the_columns(tmp_path, first):
    ids, logits = noisy_predictions(40, 3)
    columns = {f"z{k + first}": logits[:, k].tolist() for k in range(3)}
    columns["label"] = ids + first
    path = write_table(tmp_path / "a.csv", ",", columns)
    p = Predictions.read(path, logits="z")
    np.testing.assert_array_equal(p.labels, ids)
    assert p.class_names == (["1", "2", "3"] if first else None)


def test_one_column_of_a_table_is_the_second_of_two_classes(tmp_path):
    columns = {"truth": ["false", "true"], "score": [0.25, 0.75]}
    path = write_table(tmp_path / "a.csv", ",", columns)
    rows = Predictions.read(path, labels="truth", probs="score")
    assert rows.labels.tolist() == [0, 1]
    assert rows.outputs.tolist() == [[0.25], [0.75]]


@pytest.mark.parametrize("form", ["correct", "predicted", "named"])
@pytest.mark.parametrize("ending", [".npz", ".csv", ".parquet"])
def test_top1_records_are_confidence_and_correctness(tmp_path, form, ending):
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    labels, logits = noisy_predictions(200, 12)
    probs = softmax(logits.astype("float64"))
    predicted = probs.argmax(-1)
    columns = {"confidence": probs.max(-1), "label": labels, "pred": predicted}
    if form == "named":
        letters = np.asarray(list("abcdefghijkl"))
        columns |= {"label": letters[labels], "pred": letters[predicted]}
    if form == "correct":
        columns = {
            "confidence": columns["confidence"],
            "correct": predicted == labels,
        }
    path = tmp_path / f"a{ending}"
    if ending == ".npz":
        np.savez(path, **columns)
    else:
        write = {".csv": pa.csv.write_csv, ".parquet": pa.parquet.write_table}
        write[ending](pa.table(columns), path)
    rows = Predictions.read(path)
    assert rows.kind == "records" and not rows.from_logits
    np.testing.assert_array_equal(rows.labels, predicted == labels)
    np.testing.assert_allclose(rows.outputs, probs.max(-1), rtol=1e-9)


@pytest.mark.parametrize(
    ("column", "value", "options", "match"),
    [
        ("prob_1", None, {}, r"`prob_1` must have a value .* row=501"),
        ("prob_1", "x", {}, r"`prob_1` must hold numbers .* row=501, .*'x'"),
        ("prob_1", "0;5", {}, r"prob_1.* row=501, value='0;5'"),
        ("prob_1", 0.9, {}, r"must sum to 1 .* row=501, .* sum=1.4"),
        ("prob_1", -0.5, {}, r"in \[0, 1\].* row=501"),
        ("prob_1", "inf", {}, r"`prob_1` must be .* row=501, .*=inf"),
        ("label", 2, {}, r"`label` must hold class ids in \[0, 2\).* row=501"),
        ("label", "cat", {}, "`label` must hold numbers, or names of"),
        (
            "label",
            "Cat",
            {"class_names": ["cat", "dog"]},
            r"`label` must be the name of a class .* row=501, value='Cat'",
        ),
        (
            "weight",
            -1,
            {"sample_weight": "weight"},
            r"`weight` must be .* row=501",
        ),
        ("prob_1", 0.5, {"labels": "y"}, r"absent=\['y'\]"),
        ("prob_1", 0.5, {"probs": "q"}, "columns of `probs=`"),
        (
            "prob_1",
            0.5,
            {"class_names": ["1", "2"]},
            "name of a class .* row=1,",
        ),
        (
            "weight",
            1.5,
            {"confidence": "weight", "correct": "label"},
            "probability of the predicted class.* row=501, value=1.5",
        ),
        (
            "label",
            3,
            {"confidence": "weight", "correct": "label"},
            "`label` must be 0, 1, true or false.* row=501, value='3'",
        ),
        (
            "label",
            1,
            {"confidence": "weight", "correct": "label", "ignore_class": 1},
            "no classes to leave out.* ignore_class=1",
        ),
    ],
)
def test_errors_name_column_row_and_value(
    tmp_path, column, value, options, match
):
    columns = {name: [0.5] * 600 for name in ("prob_0", "prob_1", "weight")}
    columns["label"] = [0, 1] * 300
    columns[column][500] = "" if value is None else value
    path = write_table(tmp_path / "a.csv", ",", columns)
    with pytest.raises(ValueError, match=match):
        Predictions.read(path, **options)


@pytest.mark.parametrize("row", [4000, 5000])
def test_lists_of_another_length_are_found(tmp_path, row):
    import pyarrow as pa
    import pyarrow.parquet

    lists = [[1.0, 0.0]] * 6000
    lists[row] = [1.0]
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(
        pa.table({"label": [0] * 6000, "probs": lists}), path
    )
    match = rf"`probs` must hold lists of one length .* row={row + 1}, length=1"
    with pytest.raises(ValueError, match=match):
        Predictions.read(path)


def test_a_row_of_a_table_has_all_columns(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("label,prob_0,prob_1\n0,1,0\n1,0\n")
    with pytest.raises(ValueError, match=r"as many columns as names.* row=2"):
        Predictions.read(path)


def test_decimal_commas_are_hinted_at(tmp_path):
    columns = {"label": [0, 1], "prob_0": [0.5, 1.0], "prob_1": [0.5, 0.0]}
    path = write_table(tmp_path / "a.csv", ";", columns)
    with pytest.raises(ValueError, match="`decimal=,` reads decimal commas"):
        Predictions.read(path)


KINDS = (".npz", ".csv", ".parquet")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Files of one table of records of the predicted class."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    folder = tmp_path_factory.mktemp("records")
    table = {
        "label": np.array([0, 1, 1]),
        "confidence": np.array([0.9, 0.75, 1.0]),
        "correct": np.array([1, 1, 0]),
        "predicted": np.array([0, 1, 0]),
        "sample_weight": np.array([1.0, 2.0, 1.0]),
        "probs_0": np.array([0.5, 0.25, 1.0]),
        "probs_1": np.array([0.5, 0.75, 0.0]),
    }
    np.savez(folder / "r.npz", **table)
    table = pa.table(table)
    pa.csv.write_csv(table, folder / "r.csv")
    pa.parquet.write_table(table, folder / "r.parquet")
    # Without probabilities the table is one of the predicted class.
    table = table.drop_columns(["probs_0", "probs_1"])
    np.savez(folder / "t.npz", **{k: table[k] for k in table.column_names})
    pa.csv.write_csv(table, folder / "t.csv")
    pa.parquet.write_table(table, folder / "t.parquet")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_two_options_give_is_refused(records, kind):
    whole, top1 = records / f"r{kind}", records / f"t{kind}"
    for options, columns in (
        (("confidence", "sample_weight"), {"sample_weight": "confidence"}),
        (
            ("labels", "sample_weight"),
            {"labels": "label", "sample_weight": "label"},
        ),
        (("labels", "predicted"), {"predicted": "label"}),
        (("correct", "confidence"), {"correct": "confidence"}),
        (("confidence", "groups"), {"groups": ["confidence"]}),
        (("sample_weight", "ids"), {"ids": "sample_weight"}),
    ):
        with pytest.raises(ValueError, match=f"{options[0]}', '{options[1]}"):
            Predictions.read(top1, **columns)
    if kind != ".npz":
        for options, columns in (
            (("labels", "probs"), {"labels": "probs_0"}),
            (("probs", "sample_weight"), {"sample_weight": "probs_1"}),
            (("probs", "probs"), {"probs": "probs_0,probs_0"}),
        ):
            match = f"{options[0]}', '{options[1]}"
            with pytest.raises(ValueError, match=match):
                Predictions.read(whole, **columns)


@pytest.mark.parametrize("kind", KINDS)
def test_classes_may_be_groups_too(records, kind):
    columns = {"groups": ["label", "predicted"], "ids": "label"}
    rows = Predictions.read(records / f"t{kind}", **columns)
    np.testing.assert_array_equal(rows.labels, [1, 1, 0])
    groups = [*rows.groups.values()]
    assert np.stack(groups, -1).tolist() == [["0", "0"], ["1", "1"], ["1", "0"]]
    named = {**columns, "class_names": ["no", "yes"]}
    assert Predictions.read(records / f"t{kind}", **named).groups is not None


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_not_right_because_it_is_itself(records, kind):
    path = records / f"t{kind}"
    for columns, options in (
        ({"score": "correct"}, ("score", "correct")),
        ({"confidence": "label"}, ("confidence", "labels")),
        ({"labels": "predicted", "predicted": "predicted"}, ("labels", "pred")),
    ):
        with pytest.raises(ValueError, match=f"{options[0]}', '{options[1]}"):
            AnswerLog(path, columns)
    # A confidence is a score, and a group may be anything.
    columns = {"score": "confidence", "groups": "predicted", "ids": "predicted"}
    (part,) = AnswerLog(path, {**columns, "correct": "predicted"}).parts()
    assert part["score"].tolist() == [0.9, 0.75, 1.0]
    assert part["confidence"].tolist() == [0.9, 0.75, 1.0]
    assert part["groups"].tolist() == part["ids"].tolist() == ["0", "1", "0"]
    # An option takes a column away from the name that it would be found by.
    log = AnswerLog(path, {"labels": "correct", "predicted": "label"})
    (part,) = log.parts()
    assert "correct" not in log.has
    assert part["correct"].tolist() == [0, 1, 0]


def test_lines_of_json_hold_the_same(tmp_path):
    labels, logits = noisy_predictions(30, 3)
    rows = [
        {"label": k, "logits": z, "id": f"{i}.0", "site": i % 2}
        for i, (k, z) in enumerate(
            zip(labels.tolist(), logits.tolist(), strict=True)
        )
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    columns = {"ids": "id", "groups": ["site"]}
    read = Predictions.read(path, **columns)
    assert (len(read), read.from_logits) == (30, True)
    np.testing.assert_array_equal(read.labels, labels)
    np.testing.assert_allclose(read.outputs, logits, rtol=1e-6)
    assert read.ids[3] == "3.0" and read.groups["site"][3] == "1"
    for changed, words in (
        ({"logits": [1.0]}, "lists of one length.*choice_logits.* row=31"),
        ({"logits": "x"}, "lists of one length in every row. .* row=31"),
        ({"label": None}, "`label` must have a value in every row. .* row=31"),
    ):
        lines = [*rows, {**rows[0], **changed}]
        path.write_text("\n".join(map(json.dumps, lines)))
        with pytest.raises(ValueError, match=words):
            Predictions.read(path, **columns)
