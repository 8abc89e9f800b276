"""A flag before a flag file that sets it too is refused."""

import re
import shlex
import sys

import pytest
from absl import app, flags
from config import flag_order, losses, recipe_flags, script
from recipe_cases import RECIPES, ROOT

MARGIN, STRENGTH = "--margin=4", "--loss_option=strength=0.3"


@pytest.fixture
def check_order(monkeypatch):
    monkeypatch.chdir(ROOT)
    check = flag_order.check_flag_order
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


def test_reading_the_command_line_checks_the_order(files, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_classifier.py", MARGIN, *files])
    with pytest.raises(app.UsageError, match="--margin=4.0 before a flag fi"):
        recipe_flags.read()


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


def test_the_margin_of_a_set_up_is_an_option():
    values = flags.FlagValues()
    recipe_flags.define(values)
    option_text = losses.option_text
    values(["", "--margin=0"])
    setup, method, _ = recipe_flags.read(values)
    assert option_text(method._replace(loss="CrossEntropy"), setup) == ""
    mbls = method._replace(loss="MbLS", loss_option={"strength": 0.1})
    assert option_text(mbls, setup) == "strength=0.1 margin=0.0"
    acls = method._replace(loss="ACLS", loss_option={"margin": 6})
    assert option_text(acls, setup) == "margin=6"


@pytest.mark.parametrize(
    "error",
    [
        app.UsageError("Name folders of runs."),
        flags.Error("`--task` must be text."),
        FileNotFoundError(2, "No such file", "runs.csv"),
    ],
)
def test_a_script_says_what_is_wrong_and_nothing_else(
    monkeypatch, capsys, error
):
    monkeypatch.setattr(sys, "argv", ["compare.py"])

    def main(argv):
        raise error

    with pytest.raises(SystemExit) as stop:
        script.start(main)
    first, last = str(stop.value).splitlines()
    assert first == f"compare.py: {error}" and "--help" in last
    assert capsys.readouterr() == ("", "")
