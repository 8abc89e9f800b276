"""What handles records needs NumPy and SciPy alone, and no backend of Keras."""

import ast
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from paths import ROOT
from repository_files import MODULES, imports, module_name, parse

# Tables, thresholds, statements, the monitor, and the commands for them. Those
# that need Keras for a part of their work import it there.
OF_RECORDS = {
    "exporting.answer_threshold",
    "exporting.statement",
    "exporting.statement_check",
    "exporting.statement_facts",
    "monitoring.monitor",
    "predictions.correctness",
    "predictions.predictions",
    "predictions.reader",
    "predictions.roles",
    "predictions.tables",
    "predictions.writer",
    "reporting.cards",
    "reporting.command_line",
    "reporting.commands.answer_log",
    "reporting.commands.monitor",
    "reporting.commands.plan",
    "reporting.commands.repeated_samples",
    "reporting.commands.report",
    "reporting.commands.threshold",
    "reporting.commands.verify",
    "reporting.commands.watched_logs",
    "selection.choice",
    "selection.risks",
    "selection.thresholds",
}
PATHS = {module_name(path): path for path in MODULES}
PRELUDE = """
import sys

class NoBackend:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("keras", "tensorflow", "jax", "torch"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, NoBackend())
"""


def imported_at_once(name):
    """What a module imports before a function of it is called."""
    tree = parse(PATHS[name])
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(
            node.test
        ):
            continue
        whole = ast.Module([node], [])
        yield from (x for x, inside in imports(whole) if not inside)


def test_what_handles_records_imports_numpy_and_scipy_alone():
    left, seen = [f"keras_calib.{x}" for x in OF_RECORDS], {}
    while left:
        name = left.pop()
        parts = name.split(".")
        # Python imports the packages that hold a module first.
        holders = {".".join(parts[:k]) for k in range(1, len(parts))}
        found = {*imported_at_once(name), *holders}
        seen[name] = {x.split(".")[0] for x in found} - {"keras_calib"}
        left += [x for x in found if x in PATHS and x not in seen]
    allowed = {"numpy", "scipy", *sys.stdlib_module_names}
    assert not {k: x for k, x in seen.items() if x - allowed}


def run(code, folder):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "KERAS_BACKEND": keras.backend.backend(),
        },
    )


@pytest.mark.slow
@pytest.mark.portable
def test_records_are_handled_where_no_backend_is_installed(tmp_path):
    rng = np.random.default_rng(0)
    confidence = rng.beta(4.0, 1.0, 500)
    correct = rng.random(500) < confidence
    np.savez(
        tmp_path / "log.npz",
        id=np.arange(500),
        confidence=confidence,
        correct=correct,
        task=np.arange(500) % 2,
    )
    commands = [
        ["threshold", "log.npz", "--risk=0.3", "--out=a.json"],
        ["threshold", "--log=log.npz", "--risk=0.3", "--groups=task"],
        ["verify", "a.json", "--data=log.npz"],
        ["monitor", "log.npz", "--risk=0.3", "--threshold=a.json"],
        ["monitor", "--log=log.npz", "--selector=a.json", "--threshold=0.5"],
    ]
    code = f"""
from keras_calib.reporting.command_line import main
print([main([*command, "--quiet"]) for command in {commands}])
import keras_calib
rule = keras_calib.exporting.load_threshold("a.json")
print(rule([0.1, 0.99])["accept"].tolist())
monitor = keras_calib.Monitor(risk=0.3).update([0.9, 0.8], True, [1, 0])
print(monitor.counts["accepted_wrong"])
print(keras_calib.choose_threshold([3, 2, 1], [1, 1, 0], risk=0.1).coverage)
try:
    keras_calib.ECE
except ImportError as error:
    print(error)
"""
    found = run(PRELUDE + code, tmp_path)
    codes, accepted, wrong, coverage, error = found.stdout.splitlines()[-5:]
    assert codes == "[0, 0, 0, 0, 0]", found.stderr
    assert accepted.endswith("True]")
    assert (wrong, coverage[:6]) == ("1.0", "0.6666")
    assert error == "keras is not installed"


@pytest.mark.slow
@pytest.mark.portable
@pytest.mark.parametrize(
    "first",
    [
        "import keras_calib",
        "import keras\nimport keras_calib",
        "from keras_calib import Monitor",
        "from keras_calib.metrics import ECE",
        "import keras_calib.losses",
        "from keras_calib.metrics.base import StreamingMetric",
        "from keras_calib.selection import choose_threshold",
        "import keras_calib\nkeras_calib.plots",
    ],
)
def test_keras_finds_the_classes_of_a_file_whatever_came_first(tmp_path, first):
    import keras_calib as kc

    layer = kc.TemperatureScaling(temperature=2.0)
    keras.Sequential([keras.Input((3,)), layer]).save(tmp_path / "m.keras")
    code = f"""
{first}
from keras.saving import load_model
print(type(load_model("m.keras").layers[-1]).__name__)
import keras_calib
names = [*keras_calib.__all__]
from keras_calib import *
print(all(x in dir(keras_calib) and x in globals() for x in names), len(names))
"""
    found = run(code, tmp_path)
    expected = f"TemperatureScaling\nTrue {len(kc.__all__)}\n"
    assert found.stdout == expected, found.stderr
