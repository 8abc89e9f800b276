"""The code in README and documentation runs as it stands."""

import re
import shlex

import keras
import matplotlib as mpl
import pytest
from given import GIVEN
from pages import PAGES, blocks
from paths import ROOT
from promised import PROMISED, TO_THE_END

from keras_calib.reporting.command_line import COMMANDS


def code_of(page, kind):
    return blocks(page.read_text(encoding="utf-8"), kind)


def name(page):
    return str(page.relative_to(ROOT))


def test_what_is_given_is_given_to_a_page():
    with_code = {page.name for page in PAGES if code_of(page, "python")}
    assert set(GIVEN) <= with_code
    assert {*PROMISED, *TO_THE_END} <= {name(page) for page in PAGES}


# What a newcomer runs first, here as it stands.
FIRST = ("README.md",)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, marks=() if name(page) in FIRST else pytest.mark.slow
        )
        for page in PAGES
        if code_of(page, "python")
    ],
    ids=name,
)
def test_python_code_runs_and_gives_what_its_page_says(
    page, tmp_path, monkeypatch
):
    if "import keras_hub" in page.read_text(encoding="utf-8"):
        pytest.importorskip("keras_hub")
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    if keras.backend.backend() == "tensorflow":
        on_one_device(monkeypatch)
    space = {"__name__": "page"}
    exec(compile(GIVEN.get(page.name, ""), "given", "exec"), space)
    for number, code in enumerate(code_of(page, "python"), 1):
        # Elsewhere what is shown is how, not how long.
        if name(page) not in TO_THE_END:
            code = re.sub(r"\bepochs=\d+", "epochs=2", code)
        exec(compile(code, f"{name(page)}, block {number}", "exec"), space)
    promised = PROMISED.get(name(page), "")
    exec(compile(promised, f"promised by {name(page)}", "exec"), space)
    keras.backend.clear_session()


def on_one_device(monkeypatch):
    """Strategies of pages take one: two of them in a process mix gradients."""
    import tensorflow as tf

    class OnOneDevice(tf.distribute.MirroredStrategy):
        def __init__(self, devices=None, **options):
            super().__init__(devices or ["CPU:0"], **options)

    monkeypatch.setattr(tf.distribute, "MirroredStrategy", OnOneDevice)


def commands():
    for page in PAGES:
        for code in code_of(page, "sh"):
            for line in code.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield words


def test_commands_name_files_and_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in commands():
        files = [
            w for w in words if re.fullmatch(r"(examples|benchmarks)/.*", w)
        ]
        files += [
            w.partition("=")[2] for w in words if w.startswith("--flagfile=")
        ]
        assert all((ROOT / file).is_file() for file in files), words
        if words[0] == "make":
            for target in (w for w in words[1:] if "=" not in w):
                found = re.search(rf"^{target}\b.*:", makefile, re.MULTILINE)
                assert found, words
        if words[0] == "keras-calib":
            assert words[1] in {*COMMANDS, "--help"}, words
        if words[:2] == ["python", "-m"]:
            main = ROOT / words[2] / "__main__.py"
            assert main.is_file() or words[2] == "venv", words
