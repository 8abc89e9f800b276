"""The recipes of the examples say what their names say, and go together."""

import ast
import importlib
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from absl import app
from absl import flags

import keras_calib

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "examples" / "recipes"
SETUPS, LOSSES, SWEEPS = (
    sorted((RECIPES / folder).glob("*.flags"))
    for folder in ("setups", "losses", "sweeps")
)
DATA = {
    "classification": {
        "caltech_birds2011",
        "cifar10",
        "cifar100",
        "digits",
        "fashion_mnist",
        "imagenet2012",
        "mnist",
        "open_images_v4",
        "tiny_imagenet",
    },
    "segmentation": {
        "camvid",
        "cityscapes/semantic_segmentation",
        "voc2012",
    },
    "text": {"newsgroups20"},
}
MEASURES = {
    "accuracy",
    "aece",
    "aece10",
    "aurc",
    "ece",
    "ece10",
    "ece100",
    "mce",
    "mean_confidence",
    "miou",
    "nll",
    "overconfidence",
    "underconfidence",
}
# How many numbers the tables have: rows x columns that are not empty.
ROWS = {
    "ACLS, Table 1": 7,
    "ACLS, Table 3": 12 * 15,
    "ACLS, Table 4": 6 * 3,
    "ACLS, Table 5": 6 * 4,
    "ACLS, Table 6": 4 * 2,
    "ACLS, Table A": 15 * 2,
    # Accuracy stands there twice, and one row has two numbers.
    "ACLS, Table B": 7 * 5 + 2,
    "Adaptive Label Smoothing, Table 1": 4 * 4,
    "Adaptive Label Smoothing, Table 2": 14 * 6,
    "Adaptive Label Smoothing, Table 3": 4 * 6,
    "Adaptive Label Smoothing, Table 5": 30 * 8,
    "Adaptive Label Smoothing, Table 6": 10 * 8,
    "Label Relaxation, Table 1": 10 * 4,
    "Label Relaxation, Table 2": 30 * 4,
    "MbLS appendix, Table 1": 6 * 10,
    "MbLS appendix, Table 2": 2 * 8,
}


def each(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def examples():
    """The modules of the examples that are asked for by name."""
    sys.path.insert(0, str(ROOT / "examples"))
    yield importlib.import_module
    sys.path.remove(str(ROOT / "examples"))


@pytest.fixture(scope="module")
def recipe_flags(examples):
    return examples("recipe_flags")


@pytest.fixture(scope="module")
def parse(recipe_flags):
    """Reads flag files: set-up, method, options and the axes of a grid."""

    def parsed(*paths):
        values = flags.FlagValues()
        recipe_flags.define(values)
        flags.DEFINE_multi_string("grid", [], "", flag_values=values)
        left = values(["prog", *(f"--flagfile={path}" for path in paths)])
        assert left == ["prog"]
        return (*recipe_flags.read(values), values["grid"].value)

    return parsed


@pytest.fixture(scope="module")
def tables():
    return runpy.run_path(str(RECIPES / "tables.py"))


@pytest.fixture(scope="module")
def published(tables):
    return tables["read_published"]()


def comment(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return " ".join(line for line in lines if line.startswith("#"))


# Files.


@each(SETUPS + LOSSES + SWEEPS)
def test_file_cites_where_its_numbers_are_from(path):
    years = re.findall(r"\b(?:1950|20[12][0-9])\b", comment(path))
    assert years


@each(SETUPS + LOSSES + SWEEPS)
def test_lines_are_short_and_each_flag_stands_once(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split("=")[0] for line in lines if line.startswith("--")]
    several = {"--grid"} | {
        f"--{kind}_option" for kind in ("loss", "fidelity", "model")
    }
    once = [name for name in names if name not in several]
    assert len(once) == len(set(once))
    assert all(line[:1] == "#" or line[:2] == "--" for line in lines)


@each(SETUPS)
def test_setup_begins_with_name_task_and_data(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"--setup={path.stem}"
    assert [line.split("=")[0] for line in lines[1:3]] == ["--task", "--data"]
    assert lines[3].startswith("#")


@each(LOSSES)
def test_method_is_named_as_its_file(path, parse):
    assert parse(path)[1].method == path.stem


# What the flags say.


@each(SETUPS)
def test_setup_names_known_data_and_a_network(path, parse, examples):
    setup = parse(path)[0]
    assert setup.data in DATA[setup.task]
    nets = examples("nets.catalogue")
    dense = setup.task == "segmentation"
    assert setup.net in (nets.SEGMENTERS if dense else nets.NETS)
    assert (setup.ignore_class is not None) == (setup.task == "segmentation")


@each(SETUPS)
def test_setup_leaves_the_loss_to_the_other_file(path, parse):
    assert parse(path)[1:] == parse()[1:]


@each(LOSSES)
def test_loss_leaves_the_setup_to_the_other_file(path, parse):
    setup, method, *others = parse()
    found, _, *left = parse(path)
    assert (found, left) == (setup, others)


@each(SETUPS)
def test_setup_trains_by_a_schedule_that_is_whole(path, parse):
    setup = parse(path)[0]
    assert setup.learning_rate > 0
    steps = setup.decay_epochs
    assert (setup.schedule == "steps") == bool(steps)
    assert steps == sorted(set(steps))
    assert all(0 < step < setup.epochs for step in steps)
    assert setup.warmup_epochs < setup.epochs
    assert setup.schedule == "cosine" or not setup.warmup_epochs
    if setup.optimizer != "sgd":
        assert not setup.coupled_decay
        assert setup.backbone_rate == 1.0
    if setup.keep == "best":
        assert setup.validation > 0


@each(SETUPS)
def test_margin_is_6_for_cifar10_and_10_elsewhere(path, parse):
    setup = parse(path)[0]
    lines = path.read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("--margin=") for line in lines)
    assert setup.margin == (6.0 if setup.data == "cifar10" else 10.0)


@each(SETUPS)
def test_every_loss_combines_with_the_setup(path, parse):
    setup = parse(path)[0]
    for loss in LOSSES:
        first, method, _, _ = parse(path, loss)
        assert first == setup
        assert method.method == loss.stem


@each(LOSSES)
def test_loss_is_made_of_a_public_class(path, parse):
    method = parse(path)[1]
    if method.loss == "CrossEntropy":
        assert not method.loss_option
        return
    assert "margin" not in method.loss_option
    options = dict(method.loss_option)
    if method.fidelity is not None:
        inner = getattr(keras_calib, method.fidelity)
        options["fidelity"] = inner(**method.fidelity_option, from_logits=True)
    loss = getattr(keras_calib, method.loss)(**options, from_logits=True)
    assert isinstance(loss, keras.losses.Loss)
    config = loss.get_config()
    for name, value in method.loss_option.items():
        assert _same(config[name], value), name


@each(LOSSES)
def test_model_is_made_of_a_public_class(path, parse):
    method = parse(path)[1]
    if method.train_model is None:
        assert not method.model_option
        return
    kind = getattr(keras_calib, method.train_model)
    options = dict(method.model_option)
    if issubclass(kind, keras_calib.RecordingModel):
        options["num_samples"] = 4
    inputs = keras.Input((2,))
    model = kind(inputs, keras.layers.Dense(2)(inputs), **options)
    config = model.get_config()
    for name, value in method.model_option.items():
        assert _same(config.get(name, getattr(model, name, None)), value), name


def _same(first, second):
    """Equal, but for lists in place of tuples."""
    if isinstance(second, tuple | list):
        return len(first) == len(second) and all(map(_same, first, second))
    return first == second


@each(SWEEPS)
def test_grid_is_of_arguments_that_a_loss_has(path, parse):
    setup, method, _, grid = parse(path)
    assert grid
    named = re.findall(r"([\w.]+)\.flags", comment(path))
    losses = [RECIPES / "losses" / f"{name}.flags" for name in named]
    assert losses
    for axis in grid:
        name, _, values = axis.partition("=")
        values = [ast.literal_eval(value) for value in values.split(",")]
        assert values == sorted(set(values))
        kind, _, option = name.partition(".")
        for loss in losses:
            other = parse(loss)[1]
            if not option:
                assert hasattr(setup, kind)
                continue
            assert kind == "loss_option"
            for value in values:
                options = {**other.loss_option, option: value}
                getattr(keras_calib, other.loss)(**options, from_logits=True)


# The order of flags and files.

MARGIN, STRENGTH = "--margin=4", "--loss_option=strength=0.3"


@pytest.fixture
def check_order(examples, recipe_flags, monkeypatch):
    monkeypatch.chdir(ROOT)
    check = examples("flag_order").check_flag_order
    return lambda argv: check(argv, recipe_flags.define, recipe_flags.read)


@pytest.fixture(scope="module")
def files():
    setup, loss = RECIPES / "setups/cifar10_resnet50.flags", "losses/mbls.flags"
    return [f"--flagfile={setup}", "--flagfile", str(RECIPES / loss)]


@pytest.mark.parametrize("flag", [MARGIN, STRENGTH])
def test_flag_that_a_later_file_changes_is_refused(check_order, files, flag):
    name, _, value = flag.partition("=")
    check_order(["train_classifier.py", *files, flag])
    with pytest.raises(app.UsageError, match=f"`{name}` must come after"):
        check_order(["train_classifier.py", flag, *files])
    with pytest.raises(app.UsageError, match=f"`{name}` must come after"):
        check_order(["train_classifier.py", files[0], flag, *files])


def test_flag_that_no_later_file_changes_may_stand_anywhere(check_order, files):
    check_order(["train_classifier.py", "--seed=3", *files])
    # The file of the loss has no margin.
    check_order(["train_classifier.py", files[0], MARGIN, *files[1:]])
    check_order(["train_classifier.py", "--margin=6", *files])


def test_script_refuses_a_flag_that_a_later_file_changes(files):
    done = subprocess.run(
        [sys.executable, "examples/train_classifier.py", MARGIN, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "Received: --margin=4.0 before a flag file" in done.stderr


def test_commands_of_the_pages_have_their_flags_in_order(check_order):
    pages = [ROOT / "README.md", RECIPES / "README.md"]
    pages += sorted((ROOT / "docs").glob("**/*.md"))
    commands = []
    for page in pages:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S):
            commands += [x for x in block.splitlines() if "--flagfile" in x]
    assert len(commands) > 5
    for command in commands:
        check_order(shlex.split(command)[1:])


# What the papers print.


def test_published_numbers_are_as_many_as_the_tables_have(published):
    counts = dict.fromkeys(ROWS, 0)
    for row in published:
        counts[row.source] += 1
    assert counts == ROWS


def test_published_number_stands_once_for_each_source(published):
    keys = [row._replace(value="", std="") for row in published]
    assert len(keys) == len(set(keys))


def test_published_rows_name_a_setup_and_a_loss(published, tables):
    setups = {path.stem for path in SETUPS}
    losses = {path.stem for path in LOSSES}
    for row in published:
        assert row.setup in setups
        assert tables["parse_loss"](row.loss).stem in losses
        assert row.tuned in ("", "accuracy", "ece")
        assert row.on in ("test", "validation", "val", "V1", "V2", "context")


def test_published_numbers_are_fractions(published):
    for row in published:
        assert row.measure in MEASURES
        assert 0 < float(row.value) < (1 if row.measure != "nll" else 5)
        if row.std:
            assert 0 < float(row.std) < 0.2


def test_published_confidences_agree_with_each_other(published):
    """The mean is that of right and wrong predictions, to rounding."""
    groups = {}
    for row in published:
        key = row._replace(measure="", value="")
        groups.setdefault(key, {})[row.measure] = float(row.value)
    checked = 0
    for found in groups.values():
        if "mean_confidence" not in found:
            continue
        accuracy, over, under = (
            found[name]
            for name in ("accuracy", "overconfidence", "underconfidence")
        )
        mean = accuracy * (1 - under) + (1 - accuracy) * over
        assert mean == pytest.approx(found["mean_confidence"], abs=2e-3)
        checked += 1
    assert checked == 44


def test_published_tables_repeat_the_same_numbers(published):
    """Only temperatures of two papers differ."""
    values = {}
    for row in published:
        values.setdefault(row._replace(value="", std="", source=""), set()).add(
            float(row.value)
        )
    differ = {key for key, found in values.items() if len(found) > 1}
    assert {key.loss for key in differ} == {"cross_entropy+temperature"}
    assert len(differ) == 4


def test_options_of_a_published_loss_are_arguments(published, tables, parse):
    for text in {row.loss for row in published}:
        loss = tables["parse_loss"](text)
        if loss.stem == "acls":
            options = {k: float(v) for k, v in loss.options.items()}
            keras_calib.ACLS(**options, from_logits=True)
        else:
            assert not loss.options or text == "crl[condition=logit_margin]"


def test_a_published_loss_that_is_none_is_refused(tables):
    with pytest.raises(ValueError, match="`text` must name a loss"):
        tables["parse_loss"]("acls[lambda1=0")


def test_readme_is_what_its_script_writes(tables):
    path = RECIPES / "README.md"
    assert tables["readme"]() == path.read_text(encoding="utf-8")


def test_setup_without_published_numbers_is_named_in_the_readme(published):
    text = (RECIPES / "README.md").read_text(encoding="utf-8")
    have = {row.setup for row in published}
    for path in SETUPS:
        lssc = path.stem.endswith("_lssc") and "`*_lssc`" in text
        assert path.stem in have or lssc or f"`{path.stem}`" in text


@each(SETUPS)
def test_setup_says_in_which_table_its_numbers_are(path, published):
    sources = {row.source for row in published if row.setup == path.stem}
    text = comment(path).replace("#", "")
    text = " ".join(text.split()).replace("tables", "table")
    for source in sources:
        number = source.rpartition(" ")[2]
        pattern = rf"(?i)table [^.;]*\b{number}\b"
        assert re.search(pattern, text), source


def test_script_writes_the_readme_beside_itself(tmp_path):
    folder = tmp_path / "recipes"
    for name in ("setups", "losses", "sweeps"):
        (folder / name).mkdir(parents=True)
        for path in (RECIPES / name).iterdir():
            (folder / name / path.name).write_bytes(path.read_bytes())
    for name in ("tables.py", "published.csv"):
        (folder / name).write_bytes((RECIPES / name).read_bytes())
    subprocess.run([sys.executable, str(folder / "tables.py")], check=True)
    expected = (RECIPES / "README.md").read_bytes()
    assert (folder / "README.md").read_bytes() == expected
