"""The budget of the suite: what is counted, who is charged, what is told."""

import json
import os
import re
from contextlib import redirect_stdout
from functools import partial
from io import StringIO

import cpu_budget
import pytest
from cases import BACKEND
from paths import ROOT
from repeats import NO_CASES

BODY = """
import pytest, time

def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

work(0.05)

@pytest.fixture(scope="module")
def shared():
    work(0.1)

def test_one(shared):
    work(0.15)

def test_two(shared):
    pass
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Runs the file above with a budget: exit code, output and costs."""
    found = {}
    for budget, tier in ((0.5, "not slow"), (0.2, "")):
        folder = tmp_path_factory.mktemp("suite")
        (folder / "test_costs.py").write_text(BODY)
        with pytest.MonkeyPatch.context() as patch, StringIO() as out:
            patch.setattr(cpu_budget, "OF_A_TEST", 0.12)
            patch.setattr(cpu_budget, "OF_A_FILE", 0.25)
            # This machine is the reference.
            patch.setattr(cpu_budget.Costs, "slowness", lambda self: 1.0)
            patch.setattr(cpu_budget, "_loop", lambda: cpu_budget.LOOP)
            with redirect_stdout(out):
                code = pytest.main(
                    [
                        *("-q", "-s", "-c", os.devnull, f"--rootdir={folder}"),
                        *("-p", "no:xdist", "-p", "no:cacheprovider"),
                        *("--import-mode=importlib", str(folder)),
                        *("-m", tier, f"--cpu-budget={budget}"),
                        f"--cpu-costs={folder / 'costs.json'}",
                    ],
                    plugins=[cpu_budget],
                )
            costs = cpu_budget.Costs()
            costs.add(json.loads((folder / "costs.json").read_text()))
            found[budget] = code, out.getvalue(), costs
    return found


def test_imports_and_shared_fixtures_are_charged_to_their_file(ran):
    _, _, costs = ran[0.5]
    close = partial(pytest.approx, abs=0.09)
    assert costs.tests["test_costs.py::test_one"] == close(0.15)
    assert costs.tests["test_costs.py::test_two"] == close(0.0)
    assert costs.files["test_costs.py"] == close(0.15)
    assert costs.by_file()["test_costs.py"] == close(0.3)


def test_what_is_over_its_budget_is_told_and_fails_nothing(ran):
    code, told, _ = ran[0.5]
    assert code == pytest.ExitCode.OK
    assert "over budget: test test_costs.py::test_one takes 0." in told
    assert "over budget: file test_costs.py takes 0." in told
    assert "test_two takes" not in told
    assert "share what it compiles" in told


def test_the_whole_suite_fails_a_fifth_above_its_budget(ran):
    code, told, _ = ran[0.2]
    assert code == pytest.ExitCode.TESTS_FAILED
    assert re.search(r"FAILED: the tests take 0\.\d+ s of", told)
    assert "The budget is 0.2 s and a fifth" in told
    # Of slow tests none has a budget of its own.
    assert "over budget" not in told


def test_a_slower_machine_has_more_time():
    costs = cpu_budget.Costs()
    costs.loops = [3 * cpu_budget.LOOP, cpu_budget.LOOP, 2 * cpu_budget.LOOP]
    assert costs.slowness() == pytest.approx(2.0)
    assert costs.allowed(480.0) == pytest.approx(480.0 * 1.2 * 2.0)


def test_files_with_a_budget_of_their_own_exist():
    for name in cpu_budget.OF_FILES:
        assert (ROOT / name).is_file(), name


@pytest.mark.skipif(BACKEND != "tensorflow", reason="others have fewer cases")
def test_the_cases_that_repeat_a_claim_are_there():
    assert not NO_CASES
