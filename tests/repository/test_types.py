"""The annotations, as a user's type checker reads them."""

import inspect
import subprocess
import sys
import venv
from typing import Any

import pytest
from public_names import PUBLIC
from repository_files import PACKAGE

pytest.importorskip("mypy")

USERS = """\
import keras
import numpy as np

import keras_calib as kc

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
loss = kc.ACLS(margin=1.0, from_logits=True)
model.compile("adam", loss=loss, metrics=[kc.ECE(from_logits=True)])
x, y = np.zeros((8, 4)), np.zeros(8, "int64")
scaling: kc.TemperatureScaling = kc.TemperatureScaling().fit_on(model, (x, y))
error: float = kc.ece(y, model.predict(x), from_logits=True)
coverage: float = kc.choose_threshold([0.9], [1], risk=0.1).coverage
picture: str = kc.ReliabilityDisplay(kc.Predictions(y, x)).plot().to_svg()
page: kc.reporting.Report = kc.report(model, (x, y))


class Both(kc.SharpnessAwareModel, kc.CorrectnessRankingModel):
    pass


trained = Both(model.inputs, model.outputs, rho=0.1, num_samples=8, name="both")
kc.ScheduledFocalModel(inputs=x, outputs=y, from_logits=True, trainable=False)
kc.CoverageAtRisk(0.1, score="entropy", ignore_class=2, dtype="float32")
kc.MMCE(from_logits=True, reduction="sum", name="mmce", jit_compile=True)
kc.VectorScaling(trainable=False).fit(y, x, from_logits=False, force=True)
kc.SelectiveClassifier().fit(y, x, risk=0.1, delta=0.05, sample_weight=y)
"""
# Lines of mistakes, by what mypy says of each.
WRONG = {
    "bins: str = kc.ece(y, z)": "Incompatible types in assignment",
    "kc.ECE(num_bin=3)": 'Unexpected keyword argument "num_bin"',
    "kc.ece(y, z, from_logit=True)": 'Unexpected keyword argument "from_logit"',
    "kc.ece(num_bins=3)": 'Missing positional argument "labels"',
    "kc.ECE(y, z)": "Too many positional arguments",
    "kc.ACLS(margn=1.0)": 'Unexpected keyword argument "margn"',
    "kc.NACL(from_logits=1.5)": 'Argument "from_logits" to "NACL"',
    "kc.TemperatureScaling(temprature=2)": 'argument "temprature"',
    "kc.TemperatureScaling().fit(y, z, num_fold=3)": 'argument "num_fold"',
    "kc.VectorScaling().fit(y, z, num_fold=3)": 'argument "num_fold"',
    'kc.SelectiveClassifier().fit(y, z, risk="0.1")': 'Argument "risk" to',
    'kc.report(p, titel="x")': 'Unexpected keyword argument "titel"',
    "kc.ReliabilityDisplay(p).curve()": '"ReliabilityDisplay" has no attribute',
    "kc.CoverageAtRisk(0.1, resolutions=9)": 'argument "resolutions"',
    "kc.RecordingModel(num_sample=3)": '"num_sample"',
}
# They hand keywords on to what the caller names, or to Keras or matplotlib.
PASS_ON = {
    "Calibrator.set_fitted",
    "Calibrator.set_known",
    "CalibratesPredictions.given",
    "Display.plot",
    "FitsOnModel.fit_on",
    "FittedLayer.set_arrays",
    "LocalTemperatureScaling.given",
    "TemperatureScaling.given",
    "MultiLabel",
    "PerSampleLoss.__init__",
    "PriorCorrection.fit",
    "Predictor.fit",
    "SharpnessAwareModel.__init__",
    "compare",
    "get",
    "per_image",
}


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """mypy for a file, beside an installed package: `py.typed` counts."""
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder / "venv", with_pip=False)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "keras_calib").symlink_to(PACKAGE)

    def run(text):
        (folder / "user.py").write_text(text, encoding="utf-8")
        python = folder / "venv" / "bin" / "python"
        options = ["--ignore-missing-imports", "--python-executable", python]
        return subprocess.run(
            [sys.executable, "-m", "mypy", *options, "user.py"],
            cwd=folder,
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.slow
def test_code_as_users_write_it_passes(check):
    done = check(USERS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_wrong_types_and_arguments_are_found(check):
    lines = ["import keras_calib as kc", "y, z = [0], [[1.0]]"]
    lines += ["p = kc.Predictions(y, z)", *WRONG]
    found = check("\n".join(lines) + "\n").stdout
    for number, (line, message) in enumerate(WRONG.items(), 4):
        said = [x for x in found.splitlines() if f"user.py:{number}: " in x]
        assert message in "".join(said), (line, found)


def test_keywords_of_public_functions_and_methods_are_typed():
    loose = set()
    for thing in PUBLIC.values():
        members = [thing]
        if inspect.isclass(thing):
            names = [x for x in dir(thing) if x == "__init__" or x[0] != "_"]
            members = [inspect.getattr_static(thing, x) for x in names]
        for each in members:
            each = inspect.unwrap(getattr(each, "__func__", each))
            if inspect.isfunction(each):
                rest = inspect.getfullargspec(each).varkw
                if each.__annotations__.get(rest) is Any:
                    loose.add(each.__qualname__)
    assert loose == PASS_ON
