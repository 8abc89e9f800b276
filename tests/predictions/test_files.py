"""Files of `Predictions`: what is written is read again, in every format."""

import numpy as np
import pytest

from keras_calib.inputs.groups import name_of
from keras_calib.predictions import Predictions

ENDINGS = ".npz", ".csv", ".tsv", ".parquet", ".jsonl"
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(30, 3)).astype("float32") * 2
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=-1, keepdims=True)
IDS = RNG.integers(0, 3, 30)
WEIGHT = RNG.integers(0, 3, 30).astype("float32")
BESIDE = {
    "sample_weight": WEIGHT,
    "groups": {
        "site": RNG.integers(0, 2, 30),
        "sex & age": ["f, 1", "=m"] * 15,
    },
    "units": RNG.integers(0, 9, 30),
    "ids": [f"'scan' {k}" for k in range(30)],
    "class_names": ["a,b", "2", "c"],
}
SEVERAL = {"multi_label": True, "class_names": ["x", "y", "z"]}
ONE = {"class_names": ["no", "yes"], "groups": RNG.integers(0, 4, 30)}
# By kind: labels, outputs, what else is known.
KINDS = {
    "classes": (IDS, LOGITS, {"from_logits": True, **BESIDE}),
    "names": (np.array(BESIDE["class_names"])[IDS], PROBS, BESIDE),
    "soft": (PROBS[::-1].copy(), PROBS, {"sample_weight": WEIGHT}),
    "one-hot": (np.eye(3)[IDS], PROBS, {}),
    "ruled out": (
        IDS * 0,
        np.where([True, True, False], LOGITS, -np.inf),
        {"from_logits": True},
    ),
    "second": (IDS % 2, PROBS[:, :1], ONE),
    "votes": (RNG.integers(1, 5, (30, 3)), PROBS, {"votes": True, **BESIDE}),
    "shares": (
        PROBS[::-1].copy(),
        LOGITS,
        {"votes": True, "from_logits": True},
    ),
    "share": (RNG.random((30, 1)), PROBS[:, :1], {"votes": True}),
    "labels": (RNG.integers(0, 2, (30, 3)), PROBS, {**BESIDE, **SEVERAL}),
    "label": (IDS[:, None] % 2, PROBS[:, :1], {"multi_label": True}),
    "weights of labels": (
        RNG.integers(0, 2, (30, 3)),
        LOGITS,
        {
            **SEVERAL,
            "from_logits": True,
            "sample_weight": RNG.integers(0, 2, (30, 3)),
        },
    ),
}
COLUMNS = "labels", "outputs", "sample_weight"


def made(kind):
    if kind == "records":
        facts = {k: x for k, x in BESIDE.items() if k != "class_names"}
        right = LOGITS.argmax(-1) == IDS
        return Predictions(correct=right, confidence=PROBS.max(-1), **facts)
    labels, outputs, facts = KINDS[kind]
    return Predictions(labels, outputs, **facts)


def names(values):
    return values is not None and [name_of(x) for x in np.ravel(values)]


def check_same(found, given):
    """Whether two predictions have the same arrays and facts."""
    for name in COLUMNS:
        one, other = getattr(found, name), getattr(given, name)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one, other)
    assert found.outputs.dtype == given.outputs.dtype
    facts = "kind", "from_logits", "class_names", "ignore_class"
    for name in facts:
        assert getattr(found, name) == getattr(given, name)
    assert [*found.groups] == [*given.groups]
    for one, other in zip(
        (*found.groups.values(), found.units, found.ids),
        (*given.groups.values(), given.units, given.ids),
        strict=True,
    ):
        assert names(one) == names(other)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", [*KINDS, "records"])
def test_what_is_written_is_read_without_an_option(tmp_path, kind, ending):
    given = made(kind)
    given.write(tmp_path / f"p{ending}")
    check_same(Predictions.read(tmp_path / f"p{ending}"), given)


@pytest.mark.parametrize("ending", ENDINGS)
def test_outputs_keep_all_their_digits(tmp_path, ending):
    path = tmp_path / f"p{ending}"
    for dtype in ("float32", "float64"):
        outputs = LOGITS.astype(dtype) / np.dtype(dtype).type(3)
        Predictions(IDS, outputs, from_logits=True).write(path)
        found = Predictions.read(path).outputs
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, outputs)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("votes", [False, True])
def test_pixels_are_rows_of_their_image_in_tables(tmp_path, ending, votes):
    shape = (6, 5)
    labels = RNG.integers(1, 4, (30, 3)) if votes else IDS.copy()
    facts = {
        "from_logits": True,
        "votes": votes,
        "ignore_class": None if votes else 2,
        "sample_weight": WEIGHT[:6],
        "groups": {"site": [*"ababab"], "part": IDS.reshape(shape)},
        "ids": [f"image {k}" for k in range(6)],
    }
    given = Predictions(
        labels.reshape(*shape, *labels.shape[1:]),
        LOGITS.reshape(*shape, 3),
        **facts,
    )
    given.write(tmp_path / f"p{ending}")
    found = Predictions.read(tmp_path / f"p{ending}")
    lead = shape if ending == ".npz" else (30,)
    assert found.correct.shape == lead
    assert found.class_names is found.ignore_class is None
    one, other = found.outcomes(), given.outcomes()
    for name in ("score", "correct", "weight", "unit"):
        x, y = getattr(one, name), getattr(other, name)
        np.testing.assert_allclose(x, y, rtol=1e-5)
    parts = [np.ravel(p.groups["part"]).tolist() for p in (found, given)]
    assert parts[0] == [*map(str, parts[1])]
    assert np.ravel(found.ids)[5 if ending == ".npz" else -1] == "image 5"


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_of_a_row_is_one_column(tmp_path, ending):
    beside = {"sample_weight": WEIGHT, "units": IDS, "groups": IDS, "ids": IDS}
    for outputs in PROBS, PROBS[:, :1]:
        paths = [tmp_path / f"{name}{ending}" for name in "ab"]
        Predictions(IDS % 2, outputs, **beside).write(paths[0])
        columns = {k: x[:, None] for k, x in beside.items()}
        Predictions(IDS % 2, outputs, **columns).write(paths[1])
        one, other = map(Predictions.read, paths)
        for name in ("outputs", "sample_weight", "units", "ids"):
            found = np.ravel(getattr(one, name))
            np.testing.assert_array_equal(found, np.ravel(getattr(other, name)))
        assert [*one.groups] == [*other.groups] == ["group"]
        if ending != ".npz":
            assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("ignored", [-1, 255])
def test_the_ignored_class_weighs_nothing(tmp_path, ending, ignored):
    labels = np.where(IDS == 2, ignored, IDS)
    facts = {"ignore_class": ignored, "class_names": ["cat", "dog", "eel"]}
    Predictions(labels, PROBS, **facts).write(tmp_path / f"p{ending}")
    found = Predictions.read(tmp_path / f"p{ending}")
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_array_equal(found.sample_weight, IDS != 2)
    assert len(found.outcomes().correct) == (IDS != 2).sum()


@pytest.mark.parametrize("ending", ENDINGS)
def test_other_columns_are_given_by_what_they_hold(tmp_path, ending):
    given = Predictions(IDS, PROBS, groups={"a": IDS % 2, "b": IDS})
    path = tmp_path / f"p{ending}"
    given.write(path)
    found = Predictions.read(path, groups=["group_b"], ids="group_a")
    assert [*found.groups] == ["group_b"]
    assert names(found.ids) == names(IDS % 2)
    assert [*Predictions.read(path, groups=["b"]).groups] == ["b"]
    with pytest.raises(TypeError, match="`label` must be an argument of"):
        Predictions.read(path, label="a")
    with pytest.raises(ValueError, match="votes=` and `multi_label=` exclude"):
        Predictions.read(path, votes=True, multi_label=True)
    with pytest.raises(ValueError, match=r"`path` must end in one of \.npz"):
        given.write(tmp_path / "p.xlsx")


def test_a_confidence_alone_lacks_what_was_right(tmp_path):
    (tmp_path / "a.csv").write_text("confidence\n0.5\n")
    with pytest.raises(ValueError, match="must say of each `confidence` what"):
        Predictions.read(tmp_path / "a.csv")
