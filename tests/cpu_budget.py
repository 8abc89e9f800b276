"""A plugin of pytest that counts the processor time of the suite.

It counts the time of the process and of the processes it started, for each
test, each import of a test file and each fixture that several tests share.
Imports and shared fixtures are charged to their file. In a run of the fast
tier, `-m "not slow"`, a test above `OF_A_TEST` seconds or a file above its
budget is named in the summary, with what to do.

With `--cpu-budget=SECONDS` the run fails where all of it takes a fifth more
than that. Seconds are those of the machine that `LOOP` was measured on: on
another one a short loop tells how fast it is, so that a slower machine, or
one beside other work, gets more of its own.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

OF_A_TEST = 1.0
OF_A_FILE = 12.0
# Files that cannot do with less, as a whole, whatever their tests take each.
OF_FILES = {
    # Computes every result of the package, to compare it with the frozen one.
    "tests/frozen/test_frozen.py": 30.0,
    # Every public callable with every odd input.
    "tests/laws/test_battery.py": 26.0,
    # Every loss, each traced once for all laws that need a graph.
    "tests/laws/test_losses.py": 16.0,
    # The README, as printed.
    "tests/repository/test_docs_code.py": 12.0,
}
# Of all, beside the budget, for what varies from run to run.
MARGIN = 1.2
# Seconds of `_loop` while both cores of the reference machine test.
LOOP = 0.058
# Tests of a process after which the loop is run.
EVERY = 150
SHOWN = 20

_BACKEND = "imports of the backend and of keras_calib"
_KEY = pytest.StashKey["Costs"]()


class Costs:
    """Seconds by test and by file, without those counted further inside."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self.files: Counter[str] = Counter()
        self.loops: list[float] = []
        self._inner = [0.0]

    @contextmanager
    def counted(self, costs: Counter[str], name: str) -> Iterator[None]:
        """Adds what the body takes to `costs[name]`."""
        started = _seconds()
        self._inner.append(0.0)
        try:
            yield
        finally:
            spent = _seconds() - started
            costs[name] += spent - self._inner.pop()
            self._inner[-1] += spent

    def add(self, other: dict) -> None:
        """Adds what another process of the run has counted."""
        self.tests.update(other["tests"])
        self.files.update(other["files"])
        self.loops.extend(other["loops"])

    def by_file(self) -> Counter[str]:
        """All seconds, charged to files."""
        sums = Counter(self.files)
        for name, spent in self.tests.items():
            sums[name.split("::")[0]] += spent
        return sums

    def all(self) -> float:
        """All seconds of the run."""
        return sum(self.by_file().values())

    def slowness(self) -> float:
        """How many times as long as on the reference machine things take."""
        return float(np.median(self.loops)) / LOOP if self.loops else 1.0

    def allowed(self, budget: float) -> float:
        """Seconds of this machine that a run with this budget may take."""
        return budget * MARGIN * self.slowness()


def _seconds() -> float:
    spent = os.times()
    return time.process_time() + spent.children_user + spent.children_system


def _loop() -> float:
    """What some work of the interpreter and of NumPy takes here and now."""
    started = time.process_time()
    # Short arrays: of long ones, processors with wide instructions sort three
    # times as many, and run tests no faster.
    values = np.linspace(0.0, 1.0, 64)
    total, seen = 0, {}
    for i in range(100):
        total += sum(j % 7 for j in range(2_000))
        for j in range(100):
            total += float(np.sum(np.exp(values * -j)))
            seen[f"{i % 10} {j}"] = [total, str(total)]
    return time.process_time() - started


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-budget",
        type=float,
        metavar="SECONDS",
        help="fail where the tests take a fifth more processor time than this",
    )
    parser.addoption(
        "--cpu-costs",
        metavar="FILE",
        help="write seconds of tests and files to this JSON file",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_KEY] = Costs()


def pytest_sessionstart(session: pytest.Session) -> None:
    costs = session.config.stash[_KEY]
    if _is_controller(session.config):
        return
    # What every test file imports is charged to none of them.
    with costs.counted(costs.files, _BACKEND):
        import keras_calib  # noqa: F401


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    if not isinstance(collector, pytest.Module):
        return (yield)
    costs = collector.config.stash[_KEY]
    with costs.counted(costs.files, collector.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    costs = item.config.stash[_KEY]
    with costs.counted(costs.tests, item.nodeid):
        found = yield
    # While the other cores test: at the ends they may have nothing to do.
    if len(costs.tests) % EVERY == 0:
        costs.loops.append(_loop())
    return found


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    if fixturedef.scope == "function":
        return (yield)
    costs = request.config.stash[_KEY]
    # A fixture of the session is that of the folder that defines it.
    file = request._pyfuncitem.nodeid.split("::")[0]
    if fixturedef.scope == "session":
        file = fixturedef.baseid or file
    with costs.counted(costs.files, file):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    costs = config.stash[_KEY]
    if not costs.loops and not _is_controller(config):
        costs.loops.append(_loop())
    told = {
        "tests": dict(costs.tests),
        "files": dict(costs.files),
        "loops": costs.loops,
    }
    if hasattr(config, "workeroutput"):
        config.workeroutput["cpu_budget"] = told
        return
    if path := config.getoption("cpu_costs"):
        Path(path).write_text(json.dumps(told))
    budget = config.getoption("cpu_budget")
    passed = session.exitstatus == pytest.ExitCode.OK
    if budget and passed and costs.all() > costs.allowed(budget):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    costs = config.stash[_KEY]
    if not costs.tests or hasattr(config, "workerinput"):
        return
    is_fast_tier = config.option.markexpr == "not slow"
    lines = list(_summary(costs, is_fast_tier, config.getoption("cpu_budget")))
    terminalreporter.section("processor time")
    for line in lines:
        terminalreporter.write_line(line)


def _summary(
    costs: Costs, is_fast_tier: bool, budget: float | None
) -> Iterator[str]:
    """What is told of the costs, line by line."""
    slowness = costs.slowness()
    yield (
        f"{costs.all():.0f} s of {len(costs.tests)} tests, on a machine that"
        f" takes {slowness:.2f} times as long as the one of the budgets"
    )
    dearest = costs.tests + Counter(
        {f"{name} (imports, fixtures)": x for name, x in costs.files.items()}
    )
    for name, spent in dearest.most_common(SHOWN):
        yield f"{spent:8.2f} s  {name}"
    if is_fast_tier:
        yield from _all_over(costs)
    if budget and costs.all() > costs.allowed(budget):
        yield (
            f"FAILED: the tests take {costs.all():.3g} s of processor time."
            f" The budget is {budget * slowness:.3g} s and a fifth. Make the"
            " tests and files named above cheaper, or mark as slow what only"
            " repeats a claim that another test makes."
        )


def _all_over(costs: Costs) -> Iterator[str]:
    """Tests and files above their budgets, which fast ones alone have."""
    slowness = costs.slowness()
    for name, spent in costs.tests.most_common():
        alone = name.split("::")[0] not in OF_FILES
        if alone and spent > OF_A_TEST * slowness:
            yield _over("test", name, spent, OF_A_TEST * slowness)
    for name, spent in costs.by_file().most_common():
        allowed = OF_FILES.get(name, OF_A_FILE) * slowness
        if spent > allowed and name != _BACKEND:
            yield _over("file", name, spent, allowed)


def _over(kind: str, name: str, spent: float, allowed: float) -> str:
    return (
        f"over budget: {kind} {name} takes {spent:.1f} s of {allowed:.1f} s;"
        " share what it compiles or trains, ask for fewer rows, or mark what"
        " only repeats a claim as slow"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    if told := getattr(node, "workeroutput", {}).get("cpu_budget"):
        node.config.stash[_KEY].add(told)


def _is_controller(config: pytest.Config) -> bool:
    """Whether other processes run the tests of this one."""
    return bool(config.getoption("numprocesses", None))
